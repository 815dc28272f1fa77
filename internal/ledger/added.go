package ledger

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// What Lockstep itself has set on the destination is remembered here, so that
// it takes away nothing else. Any instance may write these entries, outside of
// the owners' transactions, before it acts on them.

// TopicConfigs are the configs that Lockstep has set on a destination topic,
// with the values it gave them.
type TopicConfigs struct {
	Topic string            `json:"topic"`
	Set   map[string]string `json:"set"`
}

// Key is its key in the ledger topic.
func (c *TopicConfigs) Key() string { return ConfigsKey(c.Topic) }

// ACLShards is how many entries a mirror's ACLs are spread over, so that a
// change of one rule doesn't write thousands anew.
const ACLShards = 32

// ACLs are the rules of one shard that a mirror has added to the destination,
// or holds back until a failover.
type ACLs struct {
	Mirror string `json:"mirror"`
	Shard  int    `json:"shard"`
	Rules  []ACL  `json:"rules"`
}

// Key is their key in the ledger topic.
func (a *ACLs) Key() string { return ACLsKey(a.Mirror, a.Shard) }

// ACL is one rule, in Kafka's words.
type ACL struct {
	Resource   string `json:"resource"` // TOPIC, GROUP, …
	Name       string `json:"name"`
	Pattern    string `json:"pattern"` // LITERAL or PREFIXED
	Principal  string `json:"principal"`
	Host       string `json:"host"`
	Operation  string `json:"operation"`
	Permission string `json:"permission"`
	// Wanted: the source has it. Added: Lockstep has added it to the destination,
	// or is about to.
	Wanted bool `json:"wanted,omitempty"`
	Added  bool `json:"added,omitempty"`
}

// TopicConfigs are what was set on a topic, nil: nothing is known. They must
// not be changed.
func (v *View) TopicConfigs(topic string) map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c := v.configs[topic]; c != nil {
		return c.Set
	}
	return nil
}

// ACLs are a mirror's rules, in no order. An entry that can't be read is an
// error: what it holds is not known.
func (v *View) ACLs(mirror string) ([]ACL, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []ACL
	for n := range ACLShards {
		key := ACLsKey(mirror, n)
		if err := v.broken[key]; err != nil {
			return nil, err
		}
		if a := v.acls[strings.TrimPrefix(key, aclsPrefix)]; a != nil {
			out = append(out, a.Rules...)
		}
	}
	return out, nil
}

// PutTopicConfigs writes what was set on a topic and returns when the view
// shows it.
func (w *Writer) PutTopicConfigs(ctx context.Context, topic string, set map[string]string) error {
	c := &TopicConfigs{Topic: topic, Set: set}
	value, err := c.Encode()
	if err != nil {
		return err
	}
	return w.putNamed(ctx, c.Key(), value)
}

// PutACLs writes one shard of a mirror's rules and returns when the view shows
// it.
func (w *Writer) PutACLs(ctx context.Context, a *ACLs) error {
	value, err := a.Encode()
	if err != nil {
		return err
	}
	return w.putNamed(ctx, a.Key(), value)
}

// putNamed writes an entry that belongs to no partition, and waits until the
// view has it. One that can't be read here is not overwritten.
func (w *Writer) putNamed(ctx context.Context, key string, value []byte) error {
	if err := w.view.Broken()[key]; err != nil {
		return fmt.Errorf("not overwritten: %w", err)
	}
	if err := w.named(ctx, entry{key: key, value: value}); err != nil {
		return err
	}
	n := PartitionFor(key, Partitions)
	end, err := w.end(ctx, n)
	if err != nil {
		return fmt.Errorf("ledger entry %q: its end: %w", key, err)
	}
	return w.view.WaitFor(ctx, n, end)
}

// ACLsOwner is the ledger partition whose owner keeps a mirror's ACLs in step.
func ACLsOwner(mirror string) int32 { return PartitionFor(aclsPrefix+mirror, Partitions) }

// applyNamed takes in an entry that belongs to no partition.
func (v *View) applyNamed(c change) {
	key := c.key.String()
	delete(v.broken, key)
	switch x := c.val.(type) {
	case *Instance:
		v.instances[c.key.ID] = x
	case *MirrorSettings:
		v.settings[c.key.ID] = x
	case *TopicConfigs:
		v.configs[c.key.ID] = x
	case *ACLs:
		v.acls[c.key.ID] = x
	default:
		if c.err != nil {
			v.broken[key] = c.err
			switch c.key.Kind {
			case KindMirror: // what was known stays: a switch must not fall back by itself
				return
			case KindInstance: // it is there, and has acknowledged nothing that is known
				v.instances[c.key.ID] = unreadable(c.key.ID, time.Now().Add(v.opts.Lease))
				return
			}
		}
		v.dropNamed(c.key)
	}
}

func (v *View) dropNamed(k Key) {
	switch k.Kind {
	case KindInstance:
		delete(v.instances, k.ID)
	case KindMirror:
		delete(v.settings, k.ID)
	case KindConfigs:
		delete(v.configs, k.ID)
	case KindACLs:
		delete(v.acls, k.ID)
	}
}

// named are the keys of all entries that belong to no partition.
func (v *View) named() []Key {
	var out []Key
	add := func(kind Kind, id string) { out = append(out, Key{Kind: kind, ID: id}) }
	for id := range maps.Keys(v.instances) {
		add(KindInstance, id)
	}
	for id := range maps.Keys(v.settings) {
		add(KindMirror, id)
	}
	for id := range maps.Keys(v.configs) {
		add(KindConfigs, id)
	}
	for id := range maps.Keys(v.acls) {
		add(KindACLs, id)
	}
	return out
}

// ACLShard is where a rule is kept.
func (a *ACL) ACLShard() int {
	return int(murmur2(strings.Join([]string{a.Resource, a.Name, a.Pattern, a.Principal, a.Host, a.Operation, a.Permission}, "\x00")) % ACLShards)
}

// String is the rule in one line.
func (a *ACL) String() string {
	name := a.Name
	if a.Pattern == "PREFIXED" {
		name = strconv.Quote(name) + "…"
	}
	return fmt.Sprintf("%s %s %s %s %s from %s", a.Principal, a.Permission, a.Operation, a.Resource, name, a.Host)
}
