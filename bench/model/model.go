package main

import "math"

// Size is an installation.
type Size struct {
	Instances, Partitions, Topics int
	BytesPerS                     float64 // mirrored, all together
	BatchBytes                    float64 // of a batch on the source
	Active                        float64 // share of partitions that move between two checkpoints
	Source, Dest                  int     // brokers
	Replicas                      float64 // of the destination's topics
}

// Target is the size of the issue: what follows from "10 GB/s" is assumed.
func Target() Size {
	return Size{
		Instances: 100, Partitions: 200_000, Topics: 2000, BytesPerS: 10e9, BatchBytes: 16 << 10, Active: 1,
		Source: 60, Dest: 60, Replicas: 3,
	}
}

// Share is a size with a part of the partitions and bytes, all else the same.
func (s Size) Share(f float64) Size {
	s.Partitions = max(1, int(float64(s.Partitions)*f))
	s.Topics = max(1, int(float64(s.Topics)*f))
	s.BytesPerS *= f
	return s
}

// Design is what of the mechanisms could be another way. Today is how the code
// is.
type Design struct {
	LedgerPartitions float64
	CheckpointEvery  float64 // s
	MetadataEvery    float64 // s, pause included
	CheckpointsToAll bool    // every instance reads every checkpoint
	MetadataOfAll    bool    // every instance polls all topics; else each partition's metadata is polled by its owner only
	RecordsInTxn     float64 // partition records in one ledger transaction, when many are written
	FetchSessions    bool
}

// Today is the code as it is.
func Today() Design {
	return Design{
		LedgerPartitions: 50, CheckpointEvery: 5, MetadataEvery: 3.1, CheckpointsToAll: true, MetadataOfAll: true,
		RecordsInTxn: 14, // at the start of 5,000 partitions; more when more wait
	}
}

// What the code does, counted (see the points) or read in it.
const (
	leaseEvery        = 10.0 / 3 // s, Registrar
	ledgerFetchWait   = 0.5      // s, View
	txnRequests       = 4        // AddPartitionsToTxn, FindCoordinator, Produce, EndTxn
	startTxns         = 4        // ledger writes of a partition from nothing to its first batch
	takeOverTxns      = 1        // of a partition that gets another owner: its new generation
	lookEvery         = 3.0      // s, Manager.notice: at all partitions
	eachNs            = 70       // of such a look, for a partition in the ledger (BenchmarkViewEach), twice
	ownLookNs         = 2400     // and for an own one (BenchmarkLook), both the most of 500 to 50,000 partitions
	segmentBytes      = 16 << 20 // of the ledger's topic
	segmentS          = 24 * 3600
	ledgerMaxMessage  = 8 << 20
	fetchFixedBytes   = 66 // of a Fetch, without what is asked
	answerFixedBytes  = 38 // of its answer
	topicBytes        = 19 // of a topic in both
	produceFixedBytes = 98 // of a ledger Produce, without the batch
	namedTopicBytes   = 45 // of a topic in a metadata answer, name of 13 letters
)

// Assumed are figures that this machine can't measure. They change times and
// how full things are, not counts and bytes.
type Assumed struct {
	TxnS         float64 // one ledger transaction, 4 requests, acks=all
	FetchCycleS  float64 // least time between two fetches of one connection
	ProduceS     float64 // one produce, acks=all
	EntryS       float64 // broker CPU for one partition in a fetch or a metadata answer
	DataS        float64 // Lockstep's CPU for a GB of batches of 16 KiB
	Cores        float64 // of an instance
	BrokerCores  float64
	LinkBytes    float64 // bytes/s of a machine, each way
	InstanceHeap float64 // memory for an instance
	TakeOverS    float64 // how long a take-over may last
}

// Assumptions are the model's.
func Assumptions() Assumed {
	return Assumed{
		TxnS: 0.015, FetchCycleS: 0.002, ProduceS: 0.005, EntryS: 2e-6, DataS: 1.0,
		Cores: 8, BrokerCores: 16, LinkBytes: 1.25e9, InstanceHeap: 4e9, TakeOverS: 30,
	}
}

// Load is what a size costs.
type Load struct {
	Owners, PerOwner float64 // instances that mirror; partitions of the busiest

	LedgerTxns, LedgerBytes, LedgerReads float64 // a second: transactions, bytes appended, bytes read by all instances
	Checkpoints                          float64 // a second
	CheckpointBatch                      float64 // bytes of one, all of a ledger partition
	LedgerDisk                           float64 // bytes of the topic, not replicated
	ReadInS                              float64 // of an instance that starts, on one core

	FetchRate, FetchAsked, FetchAnswered float64 // of one source broker, a second: requests, partitions in them, bytes without records
	MetadataSource, MetadataDest         float64 // bytes/s of a cluster

	DataCores, LedgerCores, LookCores, MetadataCores float64 // of the busiest owner
	Look                                             float64 // s, one look over the ledger
	Heap                                             float64 // of the busiest owner, without batches
	TakeOver, Start                                  float64 // s
	DestIn, DestOut                                  float64 // bytes/s of a destination broker
	SourceOut                                        float64
	SourceCores                                      float64 // of a source broker, for asking and metadata
	Latency                                          float64 // s, ack on the source to ack on the destination, unloaded
}

// occupied is how many of n ledger partitions hold at least one of k keys.
func occupied(n, k float64) float64 { return n * (1 - math.Pow(1-1/n, k)) }

// Model predicts from measured constants.
type Model struct {
	p Parts
	a Assumed
	// heap of an owned partition, of the view's alone, and of a process without any
	owned, base float64
	metadataNs  float64 // CPU for one partition in a metadata answer
}

// NewModel takes what can't be told from single parts from the largest point.
func NewModel(m *Measured, a Assumed) *Model {
	mod := &Model{p: m.Parts, a: a}
	if n := len(m.Points); n > 1 {
		lo, hi := m.Points[n-2], m.Points[n-1]
		mod.owned = (hi.HeapBytes - lo.HeapBytes) / float64(hi.Partitions-lo.Partitions)
		mod.base = max(0, hi.HeapBytes-mod.owned*float64(hi.Partitions))
		polls := 2 * hi.Busy.Seconds / Today().MetadataEvery
		mod.metadataNs = 1e9 * hi.BusyCPU["metadata"] / polls / float64(hi.Partitions)
	}
	return mod
}

// Predict is the load of a size with a design.
func (m *Model) Predict(s Size, d Design) (l Load) {
	p, parts, inst := m.p, float64(s.Partitions), float64(s.Instances)
	l.Owners = math.Min(inst, d.LedgerPartitions)
	l.PerOwner = math.Ceil(d.LedgerPartitions/l.Owners) * parts / d.LedgerPartitions
	share := l.PerOwner / parts

	// The ledger.
	l.Checkpoints = parts * s.Active / d.CheckpointEvery
	l.LedgerTxns = occupied(d.LedgerPartitions, parts*s.Active) / d.CheckpointEvery
	leases := inst / leaseEvery * (p.InstanceBytes + p.BatchBytes)
	l.LedgerBytes = l.Checkpoints*p.CheckpointBytes + l.LedgerTxns*(p.BatchBytes+p.MarkerBytes) + leases
	l.CheckpointBatch = p.BatchBytes + parts*s.Active/d.LedgerPartitions*p.CheckpointBytes
	ledgerBrokers := math.Min(d.LedgerPartitions, float64(s.Dest))
	polls := ledgerBrokers/ledgerFetchWait + 2*l.LedgerTxns
	pollBytes := polls * (answerFixedBytes + topicBytes + d.LedgerPartitions/ledgerBrokers*(p.FetchAnswerBytes+1))
	read, readCheckpoints := l.LedgerBytes, l.Checkpoints
	if !d.CheckpointsToAll {
		read, readCheckpoints = leases, l.Checkpoints*share
	}
	l.LedgerReads = inst * (read + pollBytes)
	if !d.CheckpointsToAll {
		l.LedgerReads += l.LedgerBytes
	}
	live := parts * (p.RecordBytes + p.CheckpointBytes)
	// The cleaner leaves the active segment alone: on average half of one, or of
	// what a day brings.
	stale := math.Min(d.LedgerPartitions*segmentBytes, l.LedgerBytes*segmentS) / 2
	l.LedgerDisk = live + stale
	l.ReadInS = (2*parts + stale/p.CheckpointBytes) * p.ViewApplyNs / 1e9

	// Batches, and what asks for them.
	batches := s.BytesPerS / s.BatchBytes
	pairs := l.Owners * float64(s.Source)
	perPair := math.Max(1/ledgerFetchWait, math.Min(batches/pairs, 1/m.a.FetchCycleS))
	l.FetchRate = perPair * l.Owners
	asked := parts / pairs
	if d.FetchSessions {
		asked = math.Min(asked, batches/pairs/perPair)
	}
	l.FetchAsked = l.FetchRate * asked
	topics := math.Min(float64(s.Topics), asked)
	l.FetchAnswered = l.FetchRate * (answerFixedBytes + topics*topicBytes + asked*p.FetchAnswerBytes)
	l.MetadataSource = inst * m.metadata(s) / d.MetadataEvery
	l.MetadataDest = l.Owners * m.metadata(s) / d.MetadataEvery
	if !d.MetadataOfAll {
		l.MetadataSource, l.MetadataDest = m.metadata(s)/d.MetadataEvery, m.metadata(s)/d.MetadataEvery
	}

	// The busiest owner.
	l.DataCores = s.BytesPerS * share / 1e9 * m.a.DataS
	l.LedgerCores = (readCheckpoints*p.ViewApplyNs + l.Checkpoints*share*p.CheckpointEncodeNs) / 1e9
	l.Look = (2*parts*eachNs + l.PerOwner*ownLookNs) / 1e9
	l.LookCores = l.Look / lookEvery
	known := parts
	if !d.MetadataOfAll {
		known = l.PerOwner
	}
	l.MetadataCores = 2 * known * m.metadataNs / 1e9 / d.MetadataEvery
	l.Heap = m.base + parts*p.ViewBytes + l.PerOwner*math.Max(0, m.owned-p.ViewBytes)

	// One ledger transaction at a time in a ledger partition.
	inOne := parts / d.LedgerPartitions
	l.TakeOver = math.Ceil(inOne*takeOverTxns/d.RecordsInTxn) * m.a.TxnS
	l.Start = math.Ceil(inOne*startTxns/d.RecordsInTxn) * m.a.TxnS

	// Brokers.
	db := float64(s.Dest)
	l.DestIn = s.BytesPerS*s.Replicas/db + l.LedgerBytes*s.Replicas/db
	l.DestOut = s.BytesPerS*(s.Replicas-1)/db + l.LedgerReads/ledgerBrokers + l.MetadataDest/db
	l.SourceOut = s.BytesPerS/float64(s.Source) + l.FetchAnswered + l.MetadataSource/float64(s.Source)
	l.SourceCores = m.a.EntryS * (l.FetchAsked + l.MetadataSource/p.MetadataBytes/float64(s.Source))
	l.Latency = m.a.FetchCycleS + 1.5*m.a.ProduceS
	return l
}

// metadata is one answer about all topics.
func (m *Model) metadata(s Size) float64 {
	return float64(s.Partitions)*m.p.MetadataBytes + float64(s.Topics)*namedTopicBytes
}

// Use is how full something is.
type Use struct {
	What, Where string
	Load, Of    float64
	Unit        string
}

// Full is 1 where the limit is.
func (u Use) Full() float64 { return u.Load / u.Of }

// Uses are the limits that a load comes near, in no order.
func (m *Model) Uses(s Size, d Design) []Use {
	l := m.Predict(s, d)
	a := m.a
	instOut := s.BytesPerS * l.PerOwner / float64(s.Partitions)
	return []Use{
		{"Instances that mirror", "group `__lockstep`", float64(s.Instances), d.LedgerPartitions, "instances"},
		{"Time of a take-over", "ledger partition", l.TakeOver, a.TakeOverS, "s"},
		{"CPU of an owner", "instance", l.DataCores + l.LedgerCores + l.LookCores + l.MetadataCores, a.Cores, "cores"},
		{"One goroutine: looks over the ledger", "instance", l.LookCores, 1, "cores"},
		{"Network of an owner", "instance", instOut + l.LedgerReads/float64(s.Instances), a.LinkBytes, "bytes/s"},
		{"Memory of an owner, without batches", "instance", l.Heap, a.InstanceHeap, "bytes"},
		{"Network out", "destination broker", l.DestOut, a.LinkBytes, "bytes/s"},
		{"Network in", "destination broker", l.DestIn, a.LinkBytes, "bytes/s"},
		{"Network out", "source broker", l.SourceOut, a.LinkBytes, "bytes/s"},
		{"CPU for partitions asked for", "source broker", l.SourceCores, a.BrokerCores, "cores"},
		{"Size of a checkpoint batch", "ledger topic", l.CheckpointBatch, ledgerMaxMessage, "bytes"},
	}
}
