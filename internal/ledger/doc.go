// Package ledger is Lockstep's shared memory: a compacted topic in the
// destination cluster that holds, for each mirror partition, its state and its
// virtual log ([Record]), its newest [Checkpoint], and the instances that
// serve it ([Instance]).
//
// The protocol (DESIGN.md §4), each point of which another package relies on:
//
//   - a record is written before what depends on it, and nobody shows what has
//     not been read back ([Writer.Put] returns only then);
//   - everyone reads committed records only ([View]); an aborted or unfinished
//     write is seen by nobody;
//   - one transactional id per ledger partition. [Writer.Acquire] fences the
//     owner before, then reads the partition to its end, then writes (M19);
//   - what can't be read is a [Partition] with Err set, never an absent one
//     (M5);
//   - a view that has not been read to its end within the lease is not fresh,
//     and an instance without a fresh view serves no mirror topic (H10).
package ledger
