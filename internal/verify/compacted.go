package verify

import (
	"errors"
	"hash/maphash"
)

// A compacted partition. A cleaner keeps the last record of every key, and
// removes tombstones some time after everything older of their key. So with
// records walked in the order of their offsets, one that is on one side only
//
//   - is superseded if a record of the same key comes later that is on both;
//   - else its key's newest record is missing on the other side, which is right
//     only if that side has a still newer one (beyond what was compared; its
//     cleaner then removed ours), or if it is a tombstone and that side has
//     nothing of the key any more.
//
// The keyTable holds the keys whose newest record, so far, is on one side only:
// few, unless one cleaner has just run. It holds hashes, 64 bits: a collision
// could hide a difference with a chance of some 1 in 10^7 for a million keys at
// a time, never invent one. What is left in the end is looked up on the other
// side (settle in settle.go).

type side uint8

const (
	onSource side = iota
	onDestination
)

func (s side) other() side { return 1 - s }

// waitingKey is a key whose newest record is on one side only.
type waitingKey struct {
	offset    int64
	side      side
	tombstone bool
}

var errTooManyKeys = errors.New("more keys than may be in memory")

type keyTable struct {
	seed          maphash.Seed
	keys          map[uint64]waitingKey
	max           int
	shard, shards uint64 // only keys with hash % shards = shard
	count         int64  // of records on one side only
}

// newKeyTable: all shards of one comparison have the same seed, or a key could
// fall into none of them.
func newKeyTable(seed maphash.Seed, limit int, shard, shards uint64) *keyTable {
	return &keyTable{seed: seed, keys: map[uint64]waitingKey{}, max: limit, shard: shard, shards: shards}
}

func (t *keyTable) hash(key []byte) (h uint64, ours bool) {
	h = maphash.Bytes(t.seed, key)
	return h, h%t.shards == t.shard
}

func (t *keyTable) waiting() bool { return len(t.keys) > 0 }

// both takes in a record that is on both sides.
func (t *keyTable) both(r *rec) {
	if len(t.keys) == 0 {
		return
	}
	if h, ours := t.hash(r.view.Key); ours {
		delete(t.keys, h)
	}
}

// oneSided takes in a record that is on one side only. Records without key are
// dropped by every cleaner.
func (t *keyTable) oneSided(s side, r *rec) error {
	t.count++
	if r.view.Key == nil {
		return nil
	}
	h, ours := t.hash(r.view.Key)
	if !ours {
		return nil
	}
	if _, known := t.keys[h]; !known && len(t.keys) >= t.max {
		return errTooManyKeys
	}
	t.keys[h] = waitingKey{offset: r.offset, side: s, tombstone: r.view.Value == nil}
	return nil
}
