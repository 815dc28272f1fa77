package protocol

// Densify makes a batch with holes, or of timestamp type LogAppendTime, ready
// for WriteStamp.
func Densify(b Batch, logAppend bool, maxOut int) (Batch, error) {
	return NewRecoder(maxOut).Densify(b, logAppend)
}

// Undensify shows a renumbered batch as the source had it.
func Undensify(b Batch, v int64, epoch int32, logAppend bool) (Batch, error) {
	return NewRecoder(DefaultMaxOut).Undensify(b, v, epoch, logAppend)
}

// VirtualCount is the number of offsets a renumbered batch has on the source.
func VirtualCount(b Batch) (int64, error) { return NewRecoder(DefaultMaxOut).VirtualCount(b) }

// Records calls f for each record until it returns false.
func Records(b Batch, f func(RecordView) bool) error { return NewRecoder(DefaultMaxOut).Records(b, f) }
// DefaultMaxOut bounds what one batch may decompress to.
const DefaultMaxOut = 128 << 20

// Recoder is the slow path for one worker.
type Recoder struct{ maxOut int }

// NewRecoder ...
func NewRecoder(maxOut int) *Recoder { return &Recoder{maxOut: maxOut} }
func (r *Recoder) Densify(b Batch, logAppend bool) (Batch, error) { return nil, ErrCorruptBatch }
func (r *Recoder) Undensify(b Batch, v int64, epoch int32, logAppend bool) (Batch, error) { return nil, ErrCorruptBatch }
func (r *Recoder) VirtualCount(b Batch) (int64, error) { return 0, ErrCorruptBatch }
func (r *Recoder) Records(b Batch, f func(RecordView) bool) error { return ErrCorruptBatch }
