package ledger

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// MirrorSettings is what an operator has said about a mirror by a verb; it
// stands above the configuration files, on every instance. Any instance may
// write it, outside of the owners' transactions.
type MirrorSettings struct {
	Name string `json:"name"`
	// Deleted: nothing is mirrored by it any more. Its partitions' records stay,
	// they are what a later start in either direction needs.
	Deleted bool `json:"deleted,omitempty"`
	// UncleanElections is the support for unclean leader elections of the
	// source, nil: as configured. TopicUncleanElections is above it, by topic.
	UncleanElections      *bool           `json:"uncleanElections,omitempty"`
	TopicUncleanElections map[string]bool `json:"topicUncleanElections,omitempty"`

	By string    `json:"by,omitempty"` // who asked
	At time.Time `json:"at"`
}

// Key is its key in the ledger topic.
func (m *MirrorSettings) Key() string { return MirrorKey(m.Name) }

// Unclean tells whether a topic of the mirror is mirrored with support for
// unclean leader elections; configured is what the configuration says. m may
// be nil.
func (m *MirrorSettings) Unclean(topic string, configured bool) bool {
	if m == nil {
		return configured
	}
	if on, ok := m.TopicUncleanElections[topic]; ok {
		return on
	}
	if m.UncleanElections != nil {
		return *m.UncleanElections
	}
	return configured
}

// Clone is a copy to change.
func (m *MirrorSettings) Clone() *MirrorSettings {
	n := *m
	n.TopicUncleanElections = maps.Clone(m.TopicUncleanElections)
	return &n
}

// MirrorSettings is what was said about a mirror by verbs, nil: nothing. It
// must not be changed.
func (v *View) MirrorSettings(name string) *MirrorSettings {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.settings[name]
}

// AllMirrorSettings are all of them, by name.
func (v *View) AllMirrorSettings() []*MirrorSettings {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.SortedFunc(maps.Values(v.settings), func(a, b *MirrorSettings) int { return cmp.Compare(a.Name, b.Name) })
}

// PutMirrorSettings writes them and returns when the view shows them.
func (w *Writer) PutMirrorSettings(ctx context.Context, m *MirrorSettings) error {
	value, err := m.Encode()
	if err != nil {
		return err
	}
	return w.putNamed(ctx, m.Key(), value)
}
