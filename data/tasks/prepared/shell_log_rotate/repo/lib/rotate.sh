# Functions of rotate-logs. Expects $keep (a number) and $dry_run (yes or no).

# Do one step, or only say it.
step() {
    if [ $dry_run = yes ]; then
        echo $*
        return
    fi
    case $1 in
    remove) rm $2 ;;
    move) mv $2 $4 ;;
    create) : >$2 ;;
    esac
}

# Make room for a new FILE.1.
shift_old_logs() {
    for old in $(ls $1.* 2>/dev/null | sort -r); do
        number=${old##*.}
        if [ $number -gt $keep ]; then
            step remove $old
        else
            step move $old "->" $1.$((number + 1))
        fi
    done
}

rotate_file() {
    [ -s $1 ] || return 0
    shift_old_logs $1
    step move $1 "->" $1.1
    step create $1
}

rotate_directory() {
    for log in $1/*.log; do
        [ -f $log ] && rotate_file $log
    done
    return 0
}
