package main

// Compared is a prediction beside what was measured.
type Compared struct {
	What                string
	Partitions          int
	Predicted, Measured float64
	Factor              float64 // by which they may differ at most
}

// Compare holds the model against a point: counts and bytes, no times.
func (m *Model) Compare(pt Point) []Compared {
	s := Size{
		Instances: 1, Partitions: pt.Partitions, Topics: pt.Topics, Source: pt.Brokers, Dest: pt.Brokers, Replicas: 1, Active: 1,
		BytesPerS: float64(pt.BusyWrites) / pt.Busy.Seconds * recordBytes, BatchBytes: recordBytes,
	}
	d := Today()
	n, b := float64(pt.Partitions), float64(pt.Brokers)
	topics := min(float64(pt.Topics), n/b)
	each := func(t Traffic, bytes int64) float64 { return float64(bytes) / float64(max(t.Requests, 1)) }
	idle, busy := pt.Idle, pt.Busy
	fetch, meta := idle.Source["lockstep Fetch"], idle.Source["lockstep Metadata"]
	txn, put, read := busy.Dest["lockstep-ledger EndTxn"], busy.Dest["lockstep-ledger Produce"], busy.Dest["lockstep-ledger Fetch"]
	// Checkpoints of one instance are written one ledger partition after the
	// other: where a transaction is slow, as on a busy fake broker, the cycle
	// takes longer than CheckpointEvery.
	one := 0.0
	for _, r := range []string{"AddPartitionsToTxn", "FindCoordinator", "Produce", "EndTxn"} {
		if t := busy.Dest["lockstep-ledger "+r]; t.Requests > 0 {
			one += t.Seconds / float64(t.Requests)
		}
	}
	d.CheckpointEvery = max(d.CheckpointEvery, occupied(d.LedgerPartitions, n)*one)
	l := m.Predict(s, d)
	puts := l.LedgerTxns + 1/leaseEvery
	return []Compared{
		{"bytes of a Fetch at the source", pt.Partitions, fetchFixedBytes + topics*topicBytes + n/b*m.p.FetchAskBytes, each(fetch, fetch.RequestBytes), 1.2},
		{"bytes of its answer, idle", pt.Partitions, answerFixedBytes + topics*topicBytes + n/b*m.p.FetchAnswerBytes, each(fetch, fetch.ResponseBytes), 1.3},
		{"bytes of a metadata answer", pt.Partitions, 140 + m.metadata(s), each(meta, meta.ResponseBytes), 1.3},
		{"metadata polls at the source, idle", pt.Partitions, idle.Seconds / d.MetadataEvery, float64(meta.Requests), 2},
		{"checkpoint transactions", pt.Partitions, l.LedgerTxns * busy.Seconds, float64(txn.Requests), 1.4},
		{"bytes produced to the ledger", pt.Partitions, (l.LedgerBytes - l.LedgerTxns*m.p.MarkerBytes + puts*produceFixedBytes) * busy.Seconds, float64(put.RequestBytes), 1.6},
		{"bytes of the ledger that one instance reads", pt.Partitions, l.LedgerReads * busy.Seconds, float64(read.ResponseBytes), 1.5},
	}
}

// Off is the factor between the two, at least 1.
func (c Compared) Off() float64 {
	if c.Predicted <= 0 || c.Measured <= 0 {
		return 1e9
	}
	return max(c.Predicted/c.Measured, c.Measured/c.Predicted)
}
