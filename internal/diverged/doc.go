// Package diverged finds what a cut has left behind: records of a mirrored
// partition that were in its virtual log once and are not any more (an unclean
// election of the source, a failback). Nothing was deleted: their batches still
// lie in the destination's physical log, dead, until retention removes them.
//
// A dead batch is told from the live log by stamps and ledger alone (package
// epoch). One that holds what the live log has too, the same offsets under the
// same leader epochs, is a copy (a write tried again), and no divergence. What
// clients wrote here while the partition was STOPPED carries no stamp: its
// offsets follow from the span-opening batch in front of it, also when the
// ledger has no span there any more.
package diverged
