package epoch

// FetchCheck is what a Fetch asks of a partition and what is shown of it now,
// all in virtual offsets.
type FetchCheck struct {
	Offset             int64
	CurrentLeaderEpoch int32 // -1: not given
	LastFetchedEpoch   int32 // -1: not given
	LeaderEpoch        int32 // shown now
	Start              int64 // virtual log start shown
	VirtualEnd         int64 // end of the last live batch
	Position           int64 // >= VirtualEnd: first source offset not yet mirrored
	EverShown          int64 // highest end or position shown since the last cut
}

// FetchAnswer is what a broker would do with a Fetch before it reads.
type FetchAnswer uint8

// The answers; the zero value is none of them.
const (
	FetchRead         FetchAnswer = iota + 1
	FetchEmpty                    // offset in (VirtualEnd, Position]: nothing to read yet (hazard H11)
	FetchFenced                   // FENCED_LEADER_EPOCH
	FetchUnknownEpoch             // UNKNOWN_LEADER_EPOCH
	FetchOutOfRange               // OFFSET_OUT_OF_RANGE
	FetchDiverging                // no records, DivergingEpoch
	FetchNotAvailable             // OFFSET_NOT_AVAILABLE: was shown before, and nothing was cut (hazard H12)
)

var fetchAnswerNames = [...]string{"none", "read", "empty", "fenced", "unknown-epoch", "out-of-range", "diverging", "not-available"}

// String is the answer as a word for logs and metric labels.
func (a FetchAnswer) String() string {
	if int(a) < len(fetchAnswerNames) {
		return fetchAnswerNames[a]
	}
	return "unknown"
}

// Destructive answers make a client throw its position or records away; they
// may be given only after ledger and tail were read anew (hazard H12).
func (a FetchAnswer) Destructive() bool { return a == FetchOutOfRange || a == FetchDiverging }

// CheckFetch applies facts.md §3, in its order, to the virtual log. The Entry
// is the diverging epoch and its end offset, (-1, -1) for any other answer.
func (l *Log) CheckFetch(c FetchCheck) (FetchAnswer, Entry) {
	none := Entry{Epoch: -1, Start: -1}
	if c.CurrentLeaderEpoch >= 0 {
		switch {
		case c.CurrentLeaderEpoch < c.LeaderEpoch:
			return FetchFenced, none
		case c.CurrentLeaderEpoch > c.LeaderEpoch:
			return FetchUnknownEpoch, none
		}
	}
	// Above our end, but not above what we have shown: we lag, or the high
	// watermark of a new leader does.
	behind := c.Offset > c.Position && c.Offset <= c.EverShown
	if c.LastFetchedEpoch >= 0 {
		e, end := l.EndOffsetFrom(c.LastFetchedEpoch, c.Start, c.Position)
		switch {
		case e < 0 && l.EpochAhead(c.LastFetchedEpoch, c.LeaderEpoch):
			return FetchUnknownEpoch, none
		case e < 0 || c.Offset < c.Start:
			return FetchOutOfRange, none
		case behind && e == c.LastFetchedEpoch && end == c.Position:
			return FetchNotAvailable, none
		case e < c.LastFetchedEpoch || end < c.Offset:
			return FetchDiverging, Entry{Epoch: e, Start: end}
		}
	}
	switch {
	case c.Offset < c.Start:
		return FetchOutOfRange, none
	case behind:
		return FetchNotAvailable, none
	case c.Offset > c.Position:
		return FetchOutOfRange, none
	case c.Offset > c.VirtualEnd:
		return FetchEmpty, none
	}
	return FetchRead, none
}

// TruncateTo is what the fetching side does with a source's answer (epoch,
// end) to its last epoch: cut to t, and ask again with the new newest epoch
// if again (facts.md §3; AbstractFetcherThread.getOffsetTruncationState).
// localEnd is our position. An undefined end (-1) gives t = -1: the source
// knows nothing of our epoch, and the caller must find out why before it cuts.
func (c Chain) TruncateTo(epoch int32, end, localEnd int64) (t int64, again bool) {
	if end < 0 {
		return -1, false
	}
	if epoch < 0 || len(c) == 0 {
		return min(end, localEnd), false
	}
	if c[0].Epoch > epoch {
		// Nothing of ours is the source's. A cut that moves nothing would get
		// the same answer for ever; Kafka's own look-up, (epoch, our first
		// start), goes there at once.
		if end < localEnd {
			return end, false
		}
		return min(c[0].Start, localEnd), false
	}
	f, fo := c.EndOffsetFor(epoch, localEnd)
	switch f {
	case epoch:
		return min(fo, end, localEnd), false
	case -1: // above all our epochs
		return min(end, localEnd), false
	}
	return min(fo, localEnd), true
}

// RangeAction is what to do when the source says OFFSET_OUT_OF_RANGE.
type RangeAction uint8

// The actions; the zero value is none of them.
const (
	RangeGoOn    RangeAction = iota + 1 // go on at our end
	RangeCut                            // the source's log is shorter: cut to its end
	RangeRestart                        // retention passed us: Restart at the source's start; count and report
)

// OutOfRange decides by the source's log start and end, asked for anew; at is
// where to go on.
func OutOfRange(position, sourceStart, sourceEnd int64) (a RangeAction, at int64) {
	switch {
	case sourceEnd < position:
		return RangeCut, sourceEnd
	case sourceStart > position:
		return RangeRestart, sourceStart
	}
	return RangeGoOn, position
}

// HighWatermark is the virtual high watermark to show next to a returned
// stretch of batches that ends with last (zero Placed when nothing was
// returned): knownEnd is the newest virtual end known to lie below the
// broker's high watermark hw (physical). The distance hw - PEnd counts only
// inside the open native span, where nothing dead lies in between (hazard
// H14).
func (l *Log) HighWatermark(last Placed, hw, knownEnd int64) int64 {
	end := max(last.VEnd, knownEnd)
	if n := len(l.Spans) - 1; n >= 0 && last.PEnd > last.P && last.Span == n && l.Spans[n].Kind == Native {
		end = max(end, last.VEnd+hw-last.PEnd)
	}
	return end
}
