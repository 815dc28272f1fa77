package protocol

// describeTopicPartitions walks the answer (v0, KIP-966) to the leader epochs.
func (e *epochPatcher) describeTopicPartitions() {
	e.i32() // throttle
	topics, _ := e.arrayLen(2 + 1 + 16 + 1 + 1 + 4 + 1)
	for range topics {
		e.i16() // error
		name, _ := e.nullableString()
		e.topic = keepString(e.topic, name)
		e.id = e.uuid()
		e.i8() // internal
		partitions, _ := e.arrayLen(2 + 4 + 4 + 4 + 5 + 1)
		for range partitions {
			e.i16() // error
			p := e.i32()
			e.i32() // leader
			e.epoch(p)
			for range 5 { // replicas, in sync, eligible leaders, last known ones, offline
				e.ints()
			}
			e.tags()
			if e.err != nil {
				return
			}
		}
		e.i32() // authorized operations
		e.tags()
		if e.err != nil {
			return
		}
	}
}
