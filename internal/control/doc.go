// Package control is what an operator sees of mirrors and does to them: which
// partitions are meant, what is known of each, and the verbs that change where
// they are wanted. It works on any instance: a verb becomes a
// [ledger.Command] for each partition, the partition's owner acts on it, and
// the ledger says when it is done. Running a verb again goes on with what the
// first run began.
package control

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Options of a [Service]. View, Writer and ID are required.
type Options struct {
	View   *ledger.View
	Writer *ledger.Writer
	ID     string // of this instance
	// Mirrors are those that this instance's configuration declares.
	Mirrors []Mirror
	// UncleanElections tells whether a topic of a mirror is mirrored with
	// support for unclean leader elections. nil: never.
	UncleanElections func(mirror, topic string) bool
	// Ends are high watermarks of destination topics, physical, by topic and
	// partition; for partitions that clients write to here. nil: not known.
	Ends func(ctx context.Context, topics []string) map[string]map[int32]int64
	// PartitionCount is how many partitions a destination topic has, for topics
	// that the ledger does not know yet. nil: not known.
	PartitionCount func(ctx context.Context, topic string) (int32, error)
	// Topics are the topics that are not mirrored, and why, as this instance
	// knows them, and how many more there are. nil: not known.
	Topics func() (rows []Topic, left int)
	// Unselected tells whether topics.include matches a mirrored partition's topic
	// no more, so that nobody mirrors it. nil: never.
	Unselected func(r *ledger.Record) bool
	// SourceAway says since when a mirror's source has not answered this instance,
	// and why; zero: it does. nil: not known.
	SourceAway func(mirror string) (since time.Time, why string)
	// ACLs is what a sync of a mirror's ACLs would change now. nil: not known.
	ACLs func(ctx context.Context, mirror string) (*ACLs, error)
	// Groups are the group offsets that this instance knows, of those that keep
	// keeps (topic is "" for a group as a whole). nil: none.
	Groups func(keep func(mirror, group, topic string) bool) []Group
	Now    func() time.Time // nil: time.Now
}

// Mirror is a mirror that the configuration declares.
type Mirror struct {
	Name        string
	Source      string // its bootstrap addresses
	Fingerprint map[string]string
}

// Service answers for one instance. Its methods may be called from anywhere.
type Service struct {
	o       Options
	mirrors atomic.Pointer[[]Mirror]
}

// SetMirrors says what the configuration declares from now on.
func (s *Service) SetMirrors(m []Mirror) { s.mirrors.Store(&m) }

func (s *Service) declared() []Mirror { return *s.mirrors.Load() }

// New makes a service; nothing runs.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Groups == nil {
		o.Groups = func(func(mirror, group, topic string) bool) []Group { return nil }
	}
	if o.UncleanElections == nil {
		o.UncleanElections = func(string, string) bool { return false }
	}
	if o.Unselected == nil {
		o.Unselected = func(*ledger.Record) bool { return false }
	}
	if o.Ends == nil {
		o.Ends = func(context.Context, []string) map[string]map[int32]int64 { return nil }
	}
	if o.Topics == nil {
		o.Topics = func() ([]Topic, int) { return nil, 0 }
	}
	s := &Service{o: o}
	s.SetMirrors(o.Mirrors)
	return s
}
