// Package mirror copies partitions of a source cluster into the destination
// and keeps their virtual logs.
//
// # The path of a mirrored batch
//
//  1. A [fetcher] (one for each source broker of a mirror) asks for all of the
//     broker's partitions that can take data: one READ_COMMITTED Fetch with
//     CurrentLeaderEpoch and LastFetchedEpoch. The answer lands in one pooled
//     [kconn.Buffer]; the process-wide [Memory] lets it in before its body is
//     read, so a slow destination stops the source's socket.
//  2. [walkRecords] (transform.go, pure) goes over the batch headers: control,
//     aborted and empty batches only move the position, the rest become items
//     with virtual offset, hole and flags.
//  3. [Partition.fetched] stamps them in place and queues them. Batches with
//     holes inside or of LogAppendTime go through the slow pool first and keep
//     their place in the queue.
//  4. A batch of a new leader epoch waits at the head of the queue until the
//     ledger has the epoch (and, with it, the bump that keeps the epoch shown
//     at or above the source's).
//  5. A [writer] (one for each destination broker of a mirror, and lane) takes
//     the head of each partition's queue, one unacknowledged batch for each
//     partition, and writes one Produce request out of the fetch buffers.
//  6. The answer's base offset is checked against the expected one, the tail is
//     published ([ledger.Live]), the buffer released.
//
// Whatever is in doubt (a lost connection, an unknown outcome, another leader
// epoch of the destination, a base offset that is not the expected one) empties
// the queue and goes to [Partition.recover]: re-read the tail, open a new
// generation in the ledger, go on from there.
//
// # States
//
// A partition's state is in the ledger ([ledger.Record]), written before it is
// acted on: lifecycle.go turns commands and states into actions, start.go is
// LOG_ALIGNMENT, stop.go STOPPING, local.go the watch over STOPPED partitions,
// align.go the way into ULE_RECOVERY. What is decided is decided by package
// epoch; these files ask its questions and write its answers. None keeps
// anything that the next owner would miss.
//
// # Who owns which goroutine
//
// [Engine.Run] starts and waits for all of them: one for each partition (ledger
// writes and re-reads, which may block), one for each source broker, one for
// each destination broker and lane, and the slow pool's workers. Only the
// partition's own goroutine changes its log, generation and state; fetchers
// only append to its queue, writers only take from it.
//
// # Locks
//
// Engine.mu before Partition.mu before Metrics.mu and what [ledger.Live] locks;
// none is held across I/O, a ledger write or a channel send that may block. Partition.mu is taken once for an answered
// partition and once for a produced batch, never for a record. A fetch answer
// counts only if the partition's token is still the one it was asked with: any
// reset of the position changes the token.
package mirror
