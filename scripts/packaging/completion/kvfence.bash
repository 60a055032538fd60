# bash completion of kvfence's programs. What is offered is read from each program's own --help, so it is
# never older than the program.

# _kvfence_help PROGRAM [COMMAND]: the help text
_kvfence_help() {
    if [[ -n ${2-} ]]; then
        "$1" "$2" --help 2>/dev/null
    else
        "$1" --help 2>/dev/null
    fi
}

# Daemons that have run here: names of stats files.
_kvfence_names() {
    local dir=${KVFENCE_RUN_DIR:-} file
    if [[ -z $dir ]]; then
        dir=/run/kvfence
        [[ $EUID -eq 0 || -z ${XDG_RUNTIME_DIR:-} ]] || dir=$XDG_RUNTIME_DIR/kvfence
    fi
    for file in "$dir"/*.stats; do
        [[ -e $file ]] && file=${file##*/} && printf '%s\n' "${file%.stats}"
    done
}

# _kvfence_words HELP OPTION: the words that stand behind it, as in "--spin auto|on|off"
_kvfence_words() {
    local words
    words=$(sed -nE "s/^ *$2[ =]([A-Za-z0-9_.-]+(\|[A-Za-z0-9_.-]+)+).*/\1/p" <<<"$1" | head -n 1)
    local IFS='|' word
    for word in $words; do
        case $word in
        *[A-Z]*) ;; # NAME, N, MS: not a word but what one is called
        *) printf '%s\n' "$word" ;;
        esac
    done
}

_kvfence_commands="status drain undrain peers peer rooms release-quarantine log-level"

_kvfence() {
    local program=$1 current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local base=${program##*/} command='' help offered=''
    if [[ $base == kvfence-bench && $COMP_CWORD -gt 1 ]]; then
        command=${COMP_WORDS[1]}
    fi
    if [[ $previous == = && $COMP_CWORD -gt 1 ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    [[ $current != = ]] || current=
    help=$(_kvfence_help "$program" "$command")
    case $previous in
    --config | --run-dir | --trace | --keep-logs | --kvfenced | --sysfs)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
        ;;
    --name)
        mapfile -t COMPREPLY < <(compgen -W "$(_kvfence_names)" -- "$current")
        return
        ;;
    --rdma-devices)
        mapfile -t COMPREPLY < <(compgen -W "auto $(ls /sys/class/infiniband 2>/dev/null)" -- "$current")
        return
        ;;
    --*)
        offered=$(_kvfence_words "$help" "$previous")
        ;;
    esac
    if [[ -z $offered ]]; then
        case $base:$current in
        kvfence-ctl:[!-]* | kvfence-ctl:)
            case $previous in
            peer) offered="up down" ;;
            log-level) offered="error warn info debug" ;;
            *) offered=$_kvfence_commands ;;
            esac
            ;;
        kvfence-stat:[!-]* | kvfence-stat:) offered=$(_kvfence_names) ;;
        kvfence-bench:[!-]* | kvfence-bench:) [[ $COMP_CWORD -gt 1 ]] || offered="ring poll transfer abort scale" ;;
        esac
        [[ -n $offered ]] || offered=$(grep -oE '(^|[ ,])--?[a-z][a-z0-9-]*' <<<"$help" | tr -d ' ,' | sort -u)
    fi
    mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$current")
}
complete -F _kvfence kvfenced kvfence-stat kvfence-ctl kvfence-bench kvfence-torture
