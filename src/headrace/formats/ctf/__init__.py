"""CNTK's text format, where each line has an item of some fields, and lines of one id are a sequence.

    0 |x 560:1 |y 1 0 0 0 0        a sparse item of x, and a dense one of y
    0 |x 0:1 |# and a comment      the same sequence goes on; y has one item in it
    1 |x 424:1 3:0.5 |y 0 1 0 0 0

What a line is:

- `[id] |field values |field values ...`, blanks and tabs between them, LF or CRLF at its end; gzip is read as well.
- Lines with the same id, one after the other, are a sequence; a line without an id goes on with the one before. Where
  the first line has no id, no line may have one, and each is a sequence of its own. Ids rise: one that does not is an
  error, since it is the sign of lines that were mixed, and is noticed without keeping all ids in memory.
- Values are numbers, or `index:value` pairs of different indices, in any order. `nan` and `inf` are numbers. A dense
  item has as many values as its shape; a sparse one may have none.
- `|#` begins a comment, up to the next `|` that is not itself followed by `#`, which is how to write a `|` in one.
- A field is on a line once. A line with neither an id nor a field is ignored; `7 |#` is a sequence without items.

`parse` reads a block at once, or not at all; a block that cannot be read is cut in two until a single sequence is left,
of which `faults` says what is wrong.
"""
