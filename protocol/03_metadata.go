package protocol

// metadata walks a Metadata answer v7+ to the leader epochs.
func (e *epochPatcher) metadata(version int16) {
	e.i32() // throttle
	brokers, _ := e.arrayLen(10)
	for range brokers {
		e.i32()
		e.str()
		e.i32()
		e.nullableString() // rack
		e.tags()
	}
	e.nullableString() // cluster id
	e.i32()            // controller
	topics, _ := e.arrayLen(2 + 1 + 1 + 1)
	for range topics {
		e.i16()                       // error
		name, _ := e.nullableString() // null from v12 when asked by an unknown id
		e.topic = keepString(e.topic, name)
		if version >= 10 {
			e.id = e.uuid()
		}
		e.i8() // internal
		partitions, _ := e.arrayLen(2 + 4 + 4 + 4 + 3)
		for range partitions {
			e.i16() // error
			p := e.i32()
			e.i32() // leader
			e.epoch(p)
			e.ints() // replicas
			e.ints() // in sync
			e.ints() // offline
			e.tags()
			if e.err != nil {
				return
			}
		}
		if version >= 8 {
			e.i32() // authorized operations
		}
		e.tags()
		if e.err != nil {
			return
		}
	}
}

// metadata walks a Metadata answer to the end of the brokers, which come first.
func (p *patcher) metadata(version int16) {
	r := &p.r
	if version >= 3 {
		r.i32() // throttle
	}
	n, _ := r.arrayLen(10)
	for range n {
		p.address()
		if version >= 1 {
			r.nullableString() // rack
		}
		r.tags()
	}
}
