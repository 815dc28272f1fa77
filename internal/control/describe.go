package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Partition is what is known of a mirror partition. Numbers that are not known
// are -1: how far the source is, only the instance knows that mirrors it.
type Partition struct {
	Mirror    string       `json:"mirror"`
	Topic     string       `json:"topic"`
	Partition int32        `json:"partition"`
	State     ledger.State `json:"state"`
	Desired   ledger.State `json:"desired,omitempty"`
	Error     string       `json:"error,omitempty"`
	Retries   int          `json:"retries"`
	// Refused is, while STOPPED, why the newest start was.
	Refused string `json:"refused,omitempty"`
	// Unselected: topics.include matches the topic no more. Nobody mirrors the
	// partition then, whatever State is, and how far the source is is not known.
	Unselected bool `json:"unselected,omitempty"`
	// Pending is a command that its owner has not taken in yet.
	Pending string `json:"pending,omitempty"`
	// WaitingFor are the instances that have not taken in the partition's
	// newest record, in a state that waits for them.
	WaitingFor []string `json:"waiting_for,omitempty"`

	SourceOffset      int64 `json:"source_offset"`      // the source's end
	DestinationOffset int64 `json:"destination_offset"` // first source offset not here; STOPPED, and until a start has cut: the end here
	Lag               int64 `json:"lag"`

	LME int32 `json:"lme"` // of the pair with the source
	LMO int64 `json:"lmo"`

	SourceEpoch      int32 `json:"source_epoch"`      // the source's leader epoch
	DestinationEpoch int32 `json:"destination_epoch"` // the destination's own, physical
	ShownEpoch       int32 `json:"shown_epoch"`       // what clients are shown
	Generation       int16 `json:"generation"`
	Bump             int32 `json:"bump"`
	Spans            int   `json:"spans"`

	Instance string       `json:"instance,omitempty"` // the one that mirrors it, if that is the one that answers
	Left     *ledger.Left `json:"left,omitempty"`     // what the newest stop left behind
	// Lacks: the newest stop made the end of a compacted topic clean without the
	// source, and values of keys may be missing until the mirror is started again.
	Lacks bool         `json:"lacks,omitempty"`
	Held  *ledger.Held `json:"held,omitempty"` // a transaction open on the source holds it back
	Cut   *ledger.Cut  `json:"cut,omitempty"`  // by the start that it is MIRRORING since; none: an older release made it
}

// stateUnselected is under which a mirror's unselected partitions are counted.
const stateUnselected ledger.State = "UNSELECTED"

// MirrorStatus is a mirror as a whole.
type MirrorStatus struct {
	Name     string `json:"name"`
	Source   string `json:"source,omitempty"`  // bootstrap addresses; "": not in this instance's configuration
	Cluster  string `json:"cluster,omitempty"` // the source's cluster id
	Declared bool   `json:"declared"`          // stands in this instance's configuration
	Deleted  bool   `json:"deleted"`
	// UncleanLeaderElection is the support for unclean elections as it is now.
	UncleanLeaderElection bool `json:"unclean_leader_election"`

	// SourceAway is since when the source has not answered the instance that was
	// asked, SourceError why.
	SourceAway  *time.Time `json:"source_away_since,omitempty"`
	SourceError string     `json:"source_error,omitempty"`

	Topics     int                  `json:"topics"`
	Partitions int                  `json:"partitions"`
	States     map[ledger.State]int `json:"states"` // partitions of unselected topics as UNSELECTED
	Lag        int64                `json:"lag"`    // of the partitions whose lag is known; -1: of none

	// ConfiguredDifferently are other instances whose configuration of this
	// mirror differs, with the keys.
	ConfiguredDifferently map[string][]string `json:"configured_differently,omitempty"`
}

// Partitions describes the selected partitions, sorted by topic and number.
func (s *Service) Partitions(ctx context.Context, sel Selection) ([]Partition, error) {
	found, err := s.find(sel, false, nil)
	if err != nil {
		return nil, err
	}
	return s.describe(ctx, found), nil
}

func (s *Service) describe(ctx context.Context, found []*ledger.Partition) []Partition {
	native := map[string]bool{}
	for _, p := range found {
		if p.Log != nil && openNative(p.Log) != nil {
			native[p.Topic] = true
		}
	}
	var ends map[string]map[int32]int64
	if len(native) > 0 {
		topics := make([]string, 0, len(native))
		for t := range native {
			topics = append(topics, t)
		}
		slices.Sort(topics)
		ends = s.o.Ends(ctx, topics)
	}
	instances := s.o.View.Instances()
	out := make([]Partition, 0, len(found))
	for _, p := range found {
		d := s.one(p, instances)
		if p.Log != nil {
			if sp := openNative(p.Log); sp != nil { // STOPPED, or a start that has cut nothing yet
				if end, ok := ends[p.Topic][p.Partition]; ok {
					d.DestinationOffset, d.Lag = sp.VStart+max(end-sp.PStart, 0), -1
				}
			}
		}
		out = append(out, d)
	}
	return out
}

func openNative(l *epoch.Log) *epoch.Span {
	if sp := l.Open(); sp != nil && sp.Kind == epoch.Native {
		return sp
	}
	return nil
}

// one is a partition by the ledger and by what this instance knows besides.
func (s *Service) one(p *ledger.Partition, instances []*ledger.Instance) Partition {
	d := Partition{
		Mirror: mirrorOf(p), Topic: p.Topic, Partition: p.Partition, State: stateOf(p),
		SourceOffset: -1, DestinationOffset: -1, Lag: -1, LME: -1, LMO: -1,
		SourceEpoch: -1, DestinationEpoch: -1, ShownEpoch: -1, Generation: -1,
	}
	if p.Err != nil {
		d.Error = p.Err.Error()
	}
	if c := p.Checkpoint; c != nil {
		d.DestinationOffset = c.Position
	}
	if r := p.Record; r != nil {
		d.Desired, d.Error, d.Retries, d.Bump, d.Spans, d.Left = r.Desired, r.Error, r.Retries, r.Log.Bump, len(r.Log.Spans), r.Left
		d.Lacks = r.Lacks
		if r.State == epoch.StateStopped {
			d.Error, d.Refused = "", r.Error
		}
		if sp := r.Log.Open(); sp != nil {
			d.DestinationEpoch = sp.PEpoch
			if sp.Kind == epoch.Mirrored {
				d.Generation = sp.Gen
			}
		}
		for _, pair := range r.Pairs {
			if pair.Cluster == r.SourceCluster {
				d.LME, d.LMO = pair.LME, pair.LMO
			}
		}
		if c := p.Command; c != nil && c.Seq > r.CommandSeq {
			d.Pending = verbOf(c)
		}
		if r.State == epoch.StateLogAlignment || r.State == epoch.StateULERecovery {
			d.WaitingFor = ledger.Waiting(instances, p, s.o.UncleanElections(r.Mirror, r.Topic), s.o.Now())
		}
		switch r.State {
		case epoch.StateStopped:
			if r.Left != nil {
				d.SourceOffset = r.Left.SourceEnd
			}
		case epoch.StateMirroring:
			d.Cut = r.Cut
		}
	}
	if p.Live == nil { // the ledger does not know it yet
		return d
	}
	if t := p.Live.Tail(); t.Known {
		d.DestinationOffset, d.DestinationEpoch, d.Instance = t.Position, max(t.PEpoch, d.DestinationEpoch), s.o.ID
	}
	st, ok := p.Live.Status()
	if ok && d.Pending == string(Start) {
		d.Error = st.Error // what it waits for
	}
	if ok && d.State != epoch.StateStopped {
		d.SourceOffset, d.SourceEpoch = st.SourceEnd, st.SourceEpoch
		if d.State == epoch.StateMirroring {
			d.Held = st.Held
		}
		if d.Error == "" {
			d.Error = st.Error
		}
	}
	if p.Record != nil && s.o.Unselected(p.Record) {
		d.Unselected, d.SourceOffset, d.SourceEpoch, d.Held, d.Instance = true, -1, -1, nil, ""
	}
	if d.SourceOffset >= 0 && d.DestinationOffset >= 0 && d.State != epoch.StateStopped {
		d.Lag = max(d.SourceOffset-d.DestinationOffset, 0)
	}
	if p.Log != nil && d.DestinationEpoch >= 0 {
		d.ShownEpoch = max(p.Log.Shown(d.DestinationEpoch), p.Log.Chain.Newest())
	}
	return d
}

// Mirrors are the mirrors that are declared here or have partitions, by name.
func (s *Service) Mirrors(ctx context.Context) ([]MirrorStatus, error) {
	parts, err := s.Partitions(ctx, Selection{})
	if err != nil {
		return nil, err
	}
	by := map[string]*MirrorStatus{}
	get := func(name string) *MirrorStatus {
		if by[name] == nil {
			by[name] = &MirrorStatus{Name: name, States: map[ledger.State]int{}, Lag: -1}
		}
		return by[name]
	}
	for _, m := range s.declared() {
		x := get(m.Name)
		x.Declared, x.Source, x.ConfiguredDifferently = true, m.Source, s.differing(m)
		if s.o.SourceAway != nil {
			if since, why := s.o.SourceAway(m.Name); !since.IsZero() {
				x.SourceAway, x.SourceError = &since, why
			}
		}
	}
	topics := map[[2]string]bool{}
	for _, p := range parts {
		x := get(p.Mirror)
		x.Partitions++
		if p.Unselected {
			x.States[stateUnselected]++
		} else {
			x.States[p.State]++
		}
		if !topics[[2]string{p.Mirror, p.Topic}] {
			topics[[2]string{p.Mirror, p.Topic}] = true
			x.Topics++
		}
		if p.Lag >= 0 {
			x.Lag = max(x.Lag, 0) + p.Lag
		}
		if v := s.o.View.Partition(p.Topic, p.Partition); x.Cluster == "" && v != nil && v.Record != nil {
			x.Cluster = v.Record.SourceCluster
		}
	}
	out := make([]MirrorStatus, 0, len(by))
	for _, m := range by {
		m.UncleanLeaderElection = s.o.UncleanElections(m.Name, "")
		if set := s.o.View.MirrorSettings(m.Name); set != nil {
			m.Deleted = set.Deleted
		}
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b MirrorStatus) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
