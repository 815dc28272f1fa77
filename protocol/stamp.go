package protocol

// Stamp is what a mirrored batch says of itself in producerId, producerEpoch
// and baseSequence (DESIGN §1). Flags and Hole as in package epoch.
type Stamp struct {
	V     int64 // virtual base offset, 0 … 2^50-1
	Hole  uint8 // offsets skipped between the chain end of the batch before and V; 255: that many or more
	Flags uint8 // 5 bits
	Gen   int16 // generation, >= 0
	Epoch int32 // leader epoch on the source, >= 0
}
