package epoch

// Kind tells the two sorts of span apart.
type Kind string

const (
	// Mirrored spans hold stamped batches of one generation.
	Mirrored Kind = "mirrored"
	// Native spans hold what clients wrote here while the partition was STOPPED.
	Native Kind = "native"
)

// Span is a stretch of the virtual log that one rule maps to the physical log.
// VStart and PStart both rise strictly from span to span (checked by
// Log.Validate).
type Span struct {
	Kind   Kind  `json:"kind"`
	Gen    int16 `json:"gen"`            // mirrored: the generation its batches are stamped with
	VStart int64 `json:"vs"`             // first virtual offset
	PStart int64 `json:"ps"`             // first physical offset
	PEpoch int32 `json:"pe"`             // the destination's leader epoch it was opened under
	Bump   int32 `json:"bump,omitempty"` // native: epoch shown = physical epoch + Bump, for the span's whole life
	// PEnd is where the span's live batches end physically; set when the span
	// is closed by a successor (hazard M7), -1 when not known.
	PEnd int64 `json:"pend"`
}

// Flags of a stamp.
const (
	FlagRenumbered   uint8 = 1 << 0 // holes inside were closed; true deltas are in the records (DESIGN §6)
	FlagLogAppend    uint8 = 1 << 1 // the source batch had timestamp type LogAppendTime
	FlagOpen         uint8 = 1 << 2 // a source transaction is begun and not ended at this batch's end (M11)
	FlagHidden       uint8 = 1 << 3 // a span-opening record, never shown
	FlagTransaction  uint8 = 1 << 4 // reserved
	KnownFlags             = FlagRenumbered | FlagLogAppend | FlagOpen | FlagHidden
	HoleMore         uint8 = 255 // hole: 255 or more offsets
	MaxGeneration    int16 = 32767
	MaxVirtualOffset int64 = 1<<50 - 1
)

// Batch is what a physical batch's header says, all the rules need of it.
type Batch struct {
	P      int64 // physical base offset
	Count  int64 // offsets it takes physically: lastOffsetDelta + 1
	PEpoch int32 // partitionLeaderEpoch, written by the destination broker
	// Control batches (markers of local transactions) are no records: the
	// cleaner never trades one for a live record (hazard H1).
	Control bool

	Stamped bool
	V       int64 // virtual base offset, from the stamp
	VCount  int64 // virtual length; = Count unless FlagRenumbered, then from the records (0: not known)
	Hole    uint8
	Flags   uint8
	Gen     int16
	Epoch   int32 // leader epoch on the source
}

// PEnd is the physical offset behind the batch.
func (b Batch) PEnd() int64 { return b.P + b.Count }

// ChainEnd is the virtual offset from which the next batch's hole counts:
// V + Count. For a renumbered batch that is not its virtual end, which stands
// only in its (compressed) records, so that the chain can be checked from
// headers alone.
func (b Batch) ChainEnd() int64 { return b.V + b.Count }
