package mirror

// sample tells readers of this instance where a confirmed batch lies; only a
// hint that saves them round trips. mu is held.
func (p *Partition) sample(v, at, maxTS int64) {}

// forgetSamples drops what was said about physical offsets from at on.
func (p *Partition) forgetSamples(at int64) {}
