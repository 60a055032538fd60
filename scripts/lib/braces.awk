# Prints "path:line:text" for a body of if, else, for or while that has no braces. Follows parentheses over
# lines; strings, characters and comments are taken out first. Macros are left alone.
FNR == 1 { depth = in_comment = in_macro = 0 }
{
    text = $0
    if (in_comment) {
        if (!match(text, /\*\//)) { next }
        text = substr(text, RSTART + 2); in_comment = 0
    }
    gsub(/\\./, "", text); gsub(/"[^"]*"/, "", text); gsub(/'[^']*'/, "", text)
    while (match(text, /\/\*([^*]|\*+[^*\/])*\*+\//)) {
        text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH)
    }
    if (match(text, /\/\*/)) { text = substr(text, 1, RSTART - 1); in_comment = 1 }
    sub(/[ \t]+$/, "", text)
    if (!depth && text ~ /^[ \t]*#/ || in_macro) { in_macro = $0 ~ /\\$/; next }
    if (!depth) {
        if (text ~ /^ *(\} *)?else$/) { printf "%s:%d:%s\n", FILENAME, FNR, $0; next }
        if (text !~ /^ *((\} *)?else )?(if|for|while) \(/) {
            if (text ~ /^ *(\} *)?else [^{i]/) { printf "%s:%d:%s\n", FILENAME, FNR, $0 }
            next
        }
        start = FNR; first = $0
        is_while = text ~ /^ *while \(/
        sub(/^[^(]*/, "", text)
    }
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "(") { depth++ }
        if (c == ")" && --depth == 0) {
            rest = substr(text, i + 1)
            gsub(/ /, "", rest)
            if (rest !~ /\{/ && !(is_while && rest == ";") ) { printf "%s:%d:%s\n", FILENAME, start, first }
            break
        }
    }
}
