package mirror

import (
	"crypto/rand"
	"encoding/hex"
	"slices"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// bookOf is the part of a record that epoch's rules change; self is the
// destination's cluster id.
func bookOf(r *ledger.Record, self string) epoch.Book {
	return epoch.Book{
		State: r.State, Previous: r.Previous, Log: &r.Log, Shadow: r.Shadow, Lacks: r.Lacks, Plain: r.Plain,
		Self:   epoch.Identity{Cluster: self, TopicID: idText(r.TopicID), Lineage: r.Lineage, Before: r.Past},
		Source: epoch.Identity{Cluster: r.SourceCluster, TopicID: idText(r.SourceTopicID), Lineage: r.SourceLineage, Before: r.SourcePast},
		Pairs:  pairsOf(r.Pairs),
	}
}

// setBook puts a changed book into a record. Topic ids and the own cluster id
// are not the rules' to change.
func setBook(r *ledger.Record, b epoch.Book) {
	r.State, r.Log, r.Shadow, r.Lacks, r.Plain, r.Lineage, r.Past = b.State, *b.Log, b.Shadow, b.Lacks, b.Plain, b.Self.Lineage, b.Self.Before
	r.Pairs = r.Pairs[:0:0]
	for _, p := range b.Pairs {
		r.Pairs = append(r.Pairs, ledger.Pair{Cluster: p.Cluster, TopicID: idOf(p.TopicID), Lineage: p.Lineage, LME: p.LME, LMO: p.LMO})
	}
}

func pairsOf(ps []ledger.Pair) []epoch.Pair {
	out := make([]epoch.Pair, 0, len(ps))
	for _, p := range ps {
		out = append(out, epoch.Pair{Cluster: p.Cluster, TopicID: idText(p.TopicID), Lineage: p.Lineage, LME: p.LME, LMO: p.LMO})
	}
	return out
}

// setWork puts a changed log into r: the one that is written to.
func setWork(r *ledger.Record, l *epoch.Log) {
	b := bookOf(r, "").WithWork(l)
	r.Log, r.Shadow = *b.Log, b.Shadow
}

// lowered is b with pairs and earlier lineages after a cut of was to next, to be
// written with it (H7, F1).
func lowered(b epoch.Book, was, next *epoch.Log) epoch.Book {
	t := next.Open().VStart
	b.Pairs = epoch.LowerPairs(b.Pairs, was.Chain, t, len(next.Chain) == 0)
	b.Self.Before = slices.Clone(b.Self.Before)
	for i := range b.Self.Before {
		b.Self.Before[i].Below = min(b.Self.Before[i].Below, t)
	}
	b.Log = next
	return b
}

// sourceRecord is a record of the source's ledger as the rules want it.
func sourceRecord(p *ledger.Partition) epoch.SourceRecord {
	if p == nil {
		return epoch.SourceRecord{Reading: epoch.Absent}
	}
	if p.Err != nil {
		return epoch.SourceRecord{Reading: epoch.Garbled, Err: p.Err.Error()}
	}
	r := p.Record
	var at int64
	if r.Left != nil && r.State == epoch.StateStopped {
		at = r.Left.At.UnixMilli()
	}
	return epoch.SourceRecord{
		StoppedAt: at,
		Reading:   epoch.Present, State: r.State, Before: epoch.Book{Log: &r.Log}.BeforeCut(), From: r.SourceCluster, Path: r.Path,
		Lineage: r.Lineage, Past: r.Past, TopicID: idText(r.TopicID), Pairs: pairsOf(r.Pairs),
	}
}

// idText is a topic id as the rules have it: "" for none.
func idText(id ledger.ID) string {
	b, _ := id.MarshalText()
	return string(b)
}

func idOf(s string) (id ledger.ID) {
	_ = id.UnmarshalText([]byte(s)) // only what idText made comes here
	return id
}

// newLineage names a new history of a log.
func newLineage() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func genOf(l *epoch.Log) int16 {
	if l == nil || l.Open() == nil {
		return -1
	}
	return l.Open().Gen
}

// usable is the checkpoint, if it speaks of this log.
func (p *Partition) usable(rec *ledger.Record) *ledger.Checkpoint {
	s := p.eng.Store.Partition(p.topic, p.partition)
	if s == nil || s.Checkpoint == nil || s.Checkpoint.Lineage != rec.Lineage {
		return nil
	}
	return s.Checkpoint
}
