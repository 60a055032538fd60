# Reads ctest's JUnit file and prints, tab-separated: passed, failed and skipped counts in the last line
# ("sum"), before it one "skip" line per reason and one "fail" line per failed test. A Criterion program
# is counted by its own tests, any other program as one. -v limit=N: lines of a failed test's output.
function decode(s) {
    gsub(/&lt;/, "<", s); gsub(/&gt;/, ">", s); gsub(/&quot;/, "\"", s); gsub(/&apos;/, "'", s)
    gsub(/&amp;/, "\\&", s)
    return s
}
function begin_case(line) {
    match(line, /name="[^"]*"/)
    name = substr(line, RSTART + 6, RLENGTH - 7)
    match(line, /status="[^"]*"/)
    status = substr(line, RSTART + 8, RLENGTH - 9)
    lines = 0; tests = 0; p = 0; f = 0; k = 0
    in_case = 1
}
function end_case(    i) {
    in_case = 0
    if (status == "notrun" || status == "disabled") {
        skipped++
        printf "skip\t%s: %s\n", name, lines > 0 ? output[1] : "did not run"
        return
    }
    if (tests == 0) {
        p = status == "run" ? 1 : 0
        f = 1 - p
    } else if (status == "fail" && f == 0) {
        f = 1 # its tests passed, and then it leaked, raced, hung or crashed
    }
    passed += p; failed += f; skipped += k
    if (f > 0) {
        printf "fail\t%s\n", name
        for (i = lines > limit ? lines - limit + 1 : 1; i <= lines; i++) {
            printf "text\t%s\n", output[i]
        }
    }
}
/^[ \t]*<testcase / { begin_case($0); next }
/^[ \t]*<\/testcase>/ { end_case(); next }
in_case {
    line = $0
    sub(/^[ \t]*<system-out>/, "", line); sub(/<\/system-out>$/, "", line)
    line = decode(line)
    if (line ~ /^[ \t]*<(failure|skipped) /) { next }
    if (line ~ /Synthesis: Tested: /) {
        split(line, word, /: | \| /)
        tests += word[3]; p += word[5]; f += word[7]
    } else if (line ~ /\[.*SKIP.*\] .*: /) {
        k++
        printf "skip\t%s\n", substr(line, index(line, "] ") + 2)
    }
    if (line ~ /[^ \t]/ && line !~ /^\[(RUN |PASS)\]/) { output[++lines] = line }
}
END { printf "sum\t%d\t%d\t%d\n", passed, failed, skipped }
