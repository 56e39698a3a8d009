// Package artifact keeps the large and binary parts of results: bytes under
// the hash of their content, in files below one directory, and in the state
// file who was given them and until when.
//
// Several processes share directory and state file. These are the rules that
// keep the two together:
//
//   - A file appears under its name, and vanishes from it, only inside a write
//     transaction of the state file, of which there is one at a time among all
//     processes. A sweep deletes the row, then the file, then commits; a Put
//     writes its bytes to a draft beforehand, and in its transaction renames
//     the draft into place, or sees that the file is there, before it commits
//     the row. So no sweep takes a file from under a row that a Put commits.
//   - What a crash can leave is harmless. Before a sweep's commit it leaves a
//     row without a file, which is ErrNotFound until the next Put of those
//     bytes; before a Put's commit, a file without a row, which the next Open
//     removes.
//   - Replicas on a database server have a directory each, and the database has the bytes in
//     parts as well. A Put uploads them before its transaction, and in it sees that they are
//     all there. A Get that finds no intact file writes one from them. A sweep deletes the
//     parts that have no row, and the files: those of other replicas' sweeps too.
//   - A draft is locked for as long as its process writes it, so a sweep knows
//     the drafts of dead processes without asking a clock.
package artifact
