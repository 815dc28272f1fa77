package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Kind tells apart what a key names.
type Kind uint8

// The kinds of entry, and what their keys look like.
const (
	KindRecord     Kind = iota + 1 // topic/partition
	KindCheckpoint                 // c/topic/partition
	KindInstance                   // i//id
	KindCommand                    // d/topic/partition
	KindMirror                     // m//name
	KindConfigs                    // t//topic
	KindACLs                       // a//mirror/shard
)

// Format is the newest value format of a kind that this program reads, and the
// one that it writes. A field more, another meaning of one, or of its absence,
// is a new number for its kind (of a record: of all that it holds): an older
// program refuses it ([ErrNewer]) and must not rewrite it, while what has not
// changed stays readable for it. Files under testdata hold the formats to this.
func (k Kind) Format() int {
	if k == KindRecord {
		return 4 // cleaner, copyFrom, plain and shadow.anew say something by their absence
	}
	return 2
}

// Key is a key of the ledger topic, taken apart. Topic names can't contain a
// slash, so the number and place of the slashes tell the kinds apart whatever
// topics are called ("i/3" is partition 3 of a topic named i).
type Key struct {
	Kind      Kind
	Topic     string
	Partition int32
	ID        string // of an instance, a mirror's name, a topic, or mirror/shard
}

const (
	checkpointPrefix = "c/"
	instancePrefix   = "i//"
	commandPrefix    = "d/"
	mirrorPrefix     = "m//"
	configsPrefix    = "t//"
	aclsPrefix       = "a//"
)

// RecordKey is the key of a mirror partition's [Record].
func RecordKey(topic string, partition int32) string {
	return topic + "/" + strconv.FormatInt(int64(partition), 10)
}

// CheckpointKey is the key of a mirror partition's [Checkpoint].
func CheckpointKey(topic string, partition int32) string {
	return checkpointPrefix + RecordKey(topic, partition)
}

// CommandKey is the key of the newest [Command] for a mirror partition.
func CommandKey(topic string, partition int32) string {
	return commandPrefix + RecordKey(topic, partition)
}

// InstanceKey is the key of an [Instance].
func InstanceKey(id string) string { return instancePrefix + id }

// ConfigsKey is the key of a topic's [TopicConfigs].
func ConfigsKey(topic string) string { return configsPrefix + topic }

// ACLsKey is the key of a part of a mirror's [ACLs].
func ACLsKey(mirror string, shard int) string {
	return aclsPrefix + mirror + "/" + strconv.Itoa(shard)
}

// MirrorKey is the key of a mirror's [MirrorSettings].
func MirrorKey(name string) string { return mirrorPrefix + name }

// ParseKey takes a key apart. An error means a key that this program never
// writes.
func ParseKey(b []byte) (Key, error) {
	s := string(b)
	if id, ok := strings.CutPrefix(s, instancePrefix); ok {
		if id == "" {
			return Key{}, errors.New("ledger key " + strconv.Quote(s) + ": no instance id")
		}
		return Key{Kind: KindInstance, ID: id}, nil
	}
	if name, ok := strings.CutPrefix(s, mirrorPrefix); ok {
		if name == "" {
			return Key{}, errors.New("ledger key " + strconv.Quote(s) + ": no mirror name")
		}
		return Key{Kind: KindMirror, ID: name}, nil
	}
	if topic, ok := strings.CutPrefix(s, configsPrefix); ok {
		if !validTopic(topic) {
			return Key{}, errors.New("ledger key " + strconv.Quote(s) + ": no topic")
		}
		return Key{Kind: KindConfigs, ID: topic}, nil
	}
	if id, ok := strings.CutPrefix(s, aclsPrefix); ok {
		mirror, num, _ := strings.Cut(id, "/")
		n, err := strconv.Atoi(num)
		if mirror == "" || err != nil || n < 0 || n >= ACLShards || strconv.Itoa(n) != num {
			return Key{}, errors.New("ledger key " + strconv.Quote(s) + ": want a//mirror/shard")
		}
		return Key{Kind: KindACLs, ID: id}, nil
	}
	k := Key{Kind: KindRecord}
	rest := s
	if strings.Count(s, "/") == 2 {
		switch s[:2] {
		case checkpointPrefix:
			k.Kind = KindCheckpoint
		case commandPrefix:
			k.Kind = KindCommand
		default:
			return Key{}, fmt.Errorf("ledger key %q: unknown kind", s)
		}
		rest = s[2:]
	}
	topic, num, ok := strings.Cut(rest, "/")
	if !ok || !validTopic(topic) {
		return Key{}, fmt.Errorf("ledger key %q: want topic/partition", s)
	}
	p, err := strconv.ParseInt(num, 10, 32)
	if err != nil || p < 0 || strconv.FormatInt(p, 10) != num {
		return Key{}, fmt.Errorf("ledger key %q: %q is no partition number", s, num)
	}
	k.Topic, k.Partition = topic, int32(p)
	return k, nil
}

// String is the key as it stands in the topic.
func (k Key) String() string {
	switch k.Kind {
	case KindCheckpoint:
		return CheckpointKey(k.Topic, k.Partition)
	case KindCommand:
		return CommandKey(k.Topic, k.Partition)
	case KindInstance:
		return InstanceKey(k.ID)
	case KindMirror:
		return MirrorKey(k.ID)
	case KindConfigs:
		return ConfigsKey(k.ID)
	case KindACLs:
		return aclsPrefix + k.ID
	}
	return RecordKey(k.Topic, k.Partition)
}

// LedgerPartition is where the key belongs: a checkpoint lies with its record,
// so that one owner, with one transactional id, writes both.
func (k Key) LedgerPartition() int32 {
	switch k.Kind {
	case KindInstance, KindMirror, KindConfigs, KindACLs:
		return PartitionFor(k.String(), Partitions)
	}
	return PartitionFor(RecordKey(k.Topic, k.Partition), Partitions)
}

// PartitionOf is the ledger partition of a mirror partition: who owns the one
// owns the other.
func PartitionOf(topic string, partition int32) int32 {
	return PartitionFor(RecordKey(topic, partition), Partitions)
}

// validTopic is org.apache.kafka.common.internals.Topic.validate.
func validTopic(t string) bool {
	if t == "" || len(t) > 249 || t == "." || t == ".." {
		return false
	}
	for i := range len(t) {
		c := t[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// PartitionFor is the partition of n that Kafka's default partitioner gives to
// a key: (murmur2(key) & 0x7fffffff) mod n, as in
// org.apache.kafka.clients.producer.internals.BuiltInPartitioner.
func PartitionFor(key string, n int) int32 {
	return int32((murmur2(key) & 0x7fffffff) % uint32(n))
}

// murmur2 is Austin Appleby's MurmurHash2 with the seed that
// org.apache.kafka.common.utils.Utils.murmur2 uses.
func murmur2(s string) uint32 {
	const (
		seed uint32 = 0x9747b28c
		m    uint32 = 0x5bd1e995
		r           = 24
	)
	h := seed ^ uint32(len(s))
	for ; len(s) >= 4; s = s[4:] {
		k := uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(s) {
	case 3:
		h ^= uint32(s[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(s[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(s[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
