import sys

from csvreport.cli import main

sys.exit(main())
