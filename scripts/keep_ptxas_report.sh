#!/bin/sh
# Runs a compiler; what ptxas says of each kernel (-Xptxas -v) goes to <object>.ptxas and not to the console.
#
#   keep_ptxas_report.sh COMPILER ARGUMENT ...
object=
before=
for argument; do
    [ "$before" = -o ] && object=$argument
    before=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2> "$object.ptxas"
code=$?
grep -v -e '^ptxas info' -e 'bytes stack frame' "$object.ptxas" >&2
exit $code
