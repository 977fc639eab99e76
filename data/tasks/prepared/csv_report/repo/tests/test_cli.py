from csvreport.cli import main


def test_prints_the_table(tmp_path, capsys):
    path = tmp_path / "expenses.csv"
    path.write_text("date,category,amount\n2024-03-01,rent,1200\n")
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == ("Category  Count    Total\nrent          1  1200.00\nTotal         1  1200.00\n")


def test_missing_file(tmp_path, capsys):
    assert main([str(tmp_path / "none.csv")]) == 1
    assert capsys.readouterr().err.startswith("csvreport: ")
