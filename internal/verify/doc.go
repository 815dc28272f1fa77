// Package verify compares a mirror's source with its destination through the
// wire, as a read_committed consumer sees both: offsets, leader epochs,
// timestamps and their type, keys, values and headers of every record; where
// the logs begin and end; and what both answer to OffsetForLeaderEpoch for each
// epoch seen.
//
// Batches that are one to one are compared by their bytes from the CRC on: what
// the producer left in the header is taken off on both sides first, by an
// update of the CRC ([protocol.Batch.Bare]), so that nothing is decompressed.
// Where batches differ (the mirror joins small ones and renumbers those with
// holes, a broker compresses anew, a cleaner rewrites) records are compared one
// by one. Control batches, aborted records and emptied batches are skipped on
// both sides, as a mirror skips them.
//
// On a compacted topic the two cleaners run at different times, so a record may
// be on one side only. That is right if a later record of its key is on the
// other side too, or if it is a tombstone and the other side has nothing of its
// key any more: see compacted.go.
package verify
