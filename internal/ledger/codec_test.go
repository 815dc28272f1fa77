package ledger

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
)

func sampleRecord() *Record {
	return &Record{
		V: KindRecord.Format(), Mirror: "dc1", Topic: "orders", Partition: 3,
		State: epoch.StateFailed, Desired: epoch.StateMirroring, Previous: epoch.StateMirroring, StateEpoch: 7, Error: "source: TLS", Retries: 2,
		Log: epoch.Log{
			Start: 5,
			Spans: []epoch.Span{
				{Kind: epoch.Mirrored, Gen: 1, VStart: 5, PStart: 0, PEpoch: 0, PEnd: 40},
				{Kind: epoch.Mirrored, Gen: 2, VStart: 45, PStart: 60, PEpoch: 3, PEnd: -1},
			},
			Chain:    epoch.Chain{{Epoch: 2, Start: 5}, {Epoch: 4, Start: 50}},
			Bump:     10,
			MaxEpoch: 12,
			LastGen:  3,
		},
		Shadow: &epoch.Shadow{
			Log: epoch.Log{
				Spans:    []epoch.Span{{Kind: epoch.Mirrored, Gen: 3, VStart: 5, PStart: 60, PEpoch: 3, PEnd: -1}},
				Chain:    epoch.Chain{{Epoch: 2, Start: 5}},
				Start:    5,
				Bump:     10,
				MaxEpoch: 12,
				LastGen:  3,
			},
			Target: 45, Local: true, Anew: true,
		},
		Lacks:   true,
		Lineage: "l1", TopicID: ID{1, 2, 3}, SourceTopicID: ID{15: 9}, SourceCluster: "srcCluster", Path: []string{"a", "srcCluster"},
		Pairs:        []Pair{{Cluster: "a", TopicID: ID{9}, Lineage: "x", LME: -1, LMO: -1}},
		DiscardLocal: true,
		CommandSeq:   5, Past: []epoch.Past{{Lineage: "l0", Below: 9}}, SourceLineage: "sl", SourcePast: []epoch.Past{{Lineage: "sl0", Below: 3}},
		Cut:  &Cut{From: 50, End: 58},
		Left: &Left{Offset: 60, Epoch: 4, Timestamp: 1700000000000, SourceEnd: 70, At: time.Unix(3, 0).UTC()}, Checked: 3, CutAt: 6,
		Cleaner: map[string]string{"min.cleanable.dirty.ratio": "0.5"}, CopyFrom: time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC), Plain: true,
	}
}

func sampleCheckpoint() *Checkpoint {
	return &Checkpoint{
		Topic: "orders", Partition: 3, Lineage: "l1", Gen: 2, Under: 3, V: 60, ChainEnd: 59, P: 80, Position: 61, LastEpoch: 4, EndShown: 60, SourceEnd: 66,
		StateEpoch: 7, CaughtUp: time.Date(2026, 5, 1, 9, 0, 0, 0, time.UTC),
		Open: true, At: time.Date(2026, 5, 1, 10, 0, 0, 5, time.UTC), Released: true,
	}
}

func sampleInstance() *Instance {
	return &Instance{ID: "a", Version: "1", Address: "x:1", Started: time.Unix(1, 0).UTC(), Lease: time.Unix(2, 0).UTC(), ServesUntil: time.Unix(2, 0).UTC(), Applied: slices.Repeat([]int64{7}, Partitions), Mirrors: map[string]map[string]string{"dc1": {"acks": "0a"}}}
}

func sampleCommand() *Command {
	return &Command{
		Mirror: "dc1", Topic: "orders", Partition: 3, Desired: epoch.StateStopped, Seq: 9, Recover: true, DiscardLocal: true,
		By: "me", At: time.Unix(4, 0).UTC(),
	}
}

func sampleSettings() *MirrorSettings {
	on := true
	return &MirrorSettings{Name: "dc1", Deleted: true, UncleanElections: &on, TopicUncleanElections: map[string]bool{"orders": false}, By: "me", At: time.Unix(5, 0).UTC()}
}

func sampleConfigs() *TopicConfigs {
	return &TopicConfigs{Topic: "orders", Set: map[string]string{"retention.ms": "5"}}
}

func sampleACLs() *ACLs {
	return &ACLs{Mirror: "dc1", Shard: 7, Rules: []ACL{{
		Resource: "TOPIC", Name: "orders", Pattern: "PREFIXED", Principal: "User:a", Host: "*", Operation: "READ", Permission: "ALLOW", Wanted: true, Added: true,
	}}}
}

// golden reads a file of testdata. UPDATE_GOLDEN=1 makes those that are missing;
// what is there stands in somebody's ledger, and never changes.
func golden(t *testing.T, now []byte, path ...string) []byte {
	t.Helper()
	file := filepath.Join(append([]string{"testdata"}, path...)...)
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) && os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, now, 0o644))
		return now
	}
	require.NoError(t, err)
	return b
}

// The bytes of a format never change: a change here is a new format number
// ([Kind.Format]) and new files, made with UPDATE_GOLDEN=1.
func TestFormatIsPinned(t *testing.T) {
	for _, c := range []struct {
		file, key string
		enc       func() ([]byte, error)
		want      any
	}{
		{"record.json", "orders/3", sampleRecord().Encode, sampleRecord()},
		{"checkpoint.json", "c/orders/3", sampleCheckpoint().Encode, sampleCheckpoint()},
		{"instance.json", "i//a", sampleInstance().Encode, sampleInstance()},
		{"command.json", "d/orders/3", sampleCommand().Encode, sampleCommand()},
		{"mirror.json", "m//dc1", sampleSettings().Encode, sampleSettings()},
		{"configs.json", "t//orders", sampleConfigs().Encode, sampleConfigs()},
		{"acls.json", "a//dc1/7", sampleACLs().Encode, sampleACLs()},
	} {
		t.Run(c.file, func(t *testing.T) {
			b, err := c.enc()
			require.NoError(t, err)
			k, err := ParseKey([]byte(c.key))
			require.NoError(t, err)
			stored := golden(t, append(b, '\n'), fmt.Sprint("format", k.Kind.Format()), c.file)
			require.JSONEq(t, string(stored), string(b))
			got, err := Decode([]byte(c.key), stored)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// A field more, at any depth, is a new format number too: what a sample leaves
// out would be refused by a program that doesn't know it, as garbled.
func TestFieldsArePinned(t *testing.T) {
	for kind, v := range map[Kind]any{
		KindRecord: recordJSON{}, KindCheckpoint: checkpointJSON{}, KindInstance: instanceJSON{}, KindCommand: commandJSON{},
		KindMirror: mirrorSettingsJSON{}, KindConfigs: topicConfigsJSON{}, KindACLs: aclsJSON{},
	} {
		var lines []string
		fieldsOf(reflect.TypeOf(v), "", &lines)
		now := strings.Join(lines, "\n") + "\n"
		require.Equal(t, string(golden(t, []byte(now), fmt.Sprint("format", kind.Format()), fmt.Sprintf("fields-%d.txt", kind))), now,
			"kind %d has other fields than format %d: raise its number in Kind.Format", kind, kind.Format())
	}
}

func fieldsOf(t reflect.Type, at string, out *[]string) {
	switch {
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) || t == reflect.TypeFor[time.Time]():
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice, t.Kind() == reflect.Map:
		fieldsOf(t.Elem(), at, out)
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && name == "" {
				fieldsOf(f.Type, at, out)
				continue
			}
			*out = append(*out, strings.TrimSpace(fmt.Sprintf("%s.%s %s %s", at, name, f.Type, f.Tag.Get("json")[len(name):])))
			fieldsOf(f.Type, at+"."+name, out)
		}
	}
}

// What an older version wrote is read, and what it says nothing of is not taken
// for an answer.
func TestOlderFormatsAreRead(t *testing.T) {
	for file, key := range map[string]string{
		"format1/record.json": "orders/3", "format1/checkpoint.json": "c/orders/3", "format1/instance.json": "i//a", "format1/command.json": "d/orders/3",
		"format1/mirror.json": "m//dc1", "format2/record.json": "orders/3", "format3/record.json": "orders/3",
	} {
		b, err := os.ReadFile(filepath.Join("testdata", filepath.FromSlash(file)))
		require.NoError(t, err)
		got, err := Decode([]byte(key), b)
		require.NoError(t, err, file)
		switch v := got.(type) {
		case *Record:
			require.Equal(t, v.V == 1, v.Shadow == nil)
			require.Less(t, v.V, KindRecord.Format())
			require.Equal(t, int64(7), v.StateEpoch)
		case *Checkpoint:
			require.Equal(t, int64(60), v.Shown(&Record{}), "nothing was cut under the older version's records")
			require.Equal(t, int64(-1), v.Shown(&Record{CutAt: 1}), "cut by the new one")
		}
	}
	// H15: what a copy under way brings back is not known of an older version's.
	for format, older := range map[int]bool{2: true, 3: true, 4: false} {
		for _, local := range []bool{false, true} {
			v, err := Decode([]byte("t/0"), fmt.Appendf(nil, `{"v":%d,"mirror":"m","topic":"t","partition":0,"state":"MIRRORING","stateEpoch":1,`+
				`"spans":[{"kind":"mirrored","gen":1,"vs":0,"ps":0,"pe":0,"pend":-1}],"chain":null,"lastGen":2,`+
				`"shadow":{"log":{"spans":[{"kind":"mirrored","gen":2,"vs":0,"ps":9,"pe":0,"pend":-1}],"chain":null,"lastGen":2},"target":0,"local":%t}}`, format, local))
			require.NoError(t, err)
			require.Equal(t, older && !local, v.(*Record).Shadow.Anew, "format %d", format)
			require.Equal(t, older && local, v.(*Record).Lacks, "format %d", format)
		}
	}
	// M17: whether the topic was compacted is not known of a record that doesn't say.
	for format, plain := range map[int]bool{1: true, 2: true, 3: false} {
		v, err := Decode([]byte("t/0"), fmt.Appendf(nil, `{"v":%d,"mirror":"m","topic":"t","partition":0,"state":"STOPPED","stateEpoch":1,"spans":null,"chain":null}`, format))
		require.NoError(t, err)
		require.Equal(t, plain, v.(*Record).Plain, "format %d", format)
		again, err := v.(*Record).Encode()
		require.NoError(t, err)
		w, err := Decode([]byte("t/0"), again)
		require.NoError(t, err)
		require.Equal(t, plain, w.(*Record).Plain)
	}
}

// An older program refuses what a newer one has written, of each kind, whatever
// else it says, and names the key.
func TestNewerFormatsAreRefused(t *testing.T) {
	for _, key := range []string{"orders/3", "c/orders/3", "i//a", "d/orders/3", "m//dc1", "t//orders", "a//dc1/7"} {
		k, err := ParseKey([]byte(key))
		require.NoError(t, err)
		_, err = Decode([]byte(key), fmt.Appendf(nil, `{"v":%d,"topic":{"new":"shape"}}`, k.Kind.Format()+1))
		require.ErrorIs(t, err, ErrNewer, key)
		require.ErrorContains(t, err, fmt.Sprintf("%q", key))
	}
}

// Every field of the exported types is stored: none is forgotten when one is
// added.
func TestEveryFieldIsStored(t *testing.T) {
	for _, v := range []any{*sampleRecord(), *sampleCheckpoint(), *sampleInstance(), *sampleCommand(), *sampleSettings(), *sampleConfigs(), *sampleACLs(), sampleACLs().Rules[0]} {
		rv := reflect.ValueOf(v)
		for i := range rv.NumField() {
			require.False(t, rv.Field(i).IsZero(), "%T.%s has no value in the sample", v, rv.Type().Field(i).Name)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	good, err := sampleRecord().Encode()
	require.NoError(t, err)
	edit := func(f func(m map[string]any)) string {
		var m map[string]any
		require.NoError(t, json.Unmarshal(good, &m))
		f(m)
		b, err := json.Marshal(m)
		require.NoError(t, err)
		return string(b)
	}
	for name, c := range map[string]struct{ value, want string }{
		"empty":           {"", "garbled"},
		"cut":             {string(good[:len(good)-10]), "garbled"},
		"trailing":        {string(good) + "{}", "garbled"},
		"no object":       {"[1]", "garbled"},
		"no format":       {edit(func(m map[string]any) { delete(m, "v") }), "no format number"},
		"format 0":        {edit(func(m map[string]any) { m["v"] = 0 }), "format 0"},
		"newer":           {edit(func(m map[string]any) { m["v"] = KindRecord.Format() + 1; m["state"] = map[string]any{} }), "newer format"},
		"unknown field":   {edit(func(m map[string]any) { m["shade"] = 1 }), "shade"},
		"unknown state":   {edit(func(m map[string]any) { m["state"] = "RESTING" }), "RESTING"},
		"other key":       {edit(func(m map[string]any) { m["partition"] = 4 }), "orders/4"},
		"no state epoch":  {edit(func(m map[string]any) { m["stateEpoch"] = 0 }), "state epoch"},
		"broken topic id": {edit(func(m map[string]any) { m["topicId"] = "0102" }), "hex digits"},
		"broken log":      {edit(func(m map[string]any) { m["maxEpoch"] = 1 }), "virtual log"},
		"not utf-8":       {strings.Replace(string(good), "TLS", "\xff", 1), "UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte("orders/3"), []byte(c.value))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, `"orders/3"`)
			if name == "newer" {
				require.ErrorIs(t, err, ErrNewer)
			}
		})
	}
	v, err := Decode([]byte("orders/3"), nil)
	require.NoError(t, err)
	require.Nil(t, v)
}

func TestEncodeRefusesWhatCannotBeRead(t *testing.T) {
	r := sampleRecord()
	r.State = "X"
	_, err := r.Encode()
	require.ErrorContains(t, err, "not written")
	r = sampleRecord()
	r.Log.MaxEpoch = 0
	_, err = r.Encode()
	require.ErrorContains(t, err, "virtual log")
}

func TestNextSharesNothing(t *testing.T) {
	r := sampleRecord()
	n := r.Next()
	require.Equal(t, r.StateEpoch+1, n.StateEpoch)
	n.Path[0], n.Pairs[0].LMO, n.Log.Spans[0].VStart, n.Log.Chain[0].Start = "z", 9, 9, 9
	require.Equal(t, sampleRecord(), r)
}

func FuzzDecode(f *testing.F) {
	for key, enc := range map[string]func() ([]byte, error){
		"orders/3": sampleRecord().Encode, "c/orders/3": sampleCheckpoint().Encode, "i//a": sampleInstance().Encode, "d/orders/3": sampleCommand().Encode,
		"m//dc1": sampleSettings().Encode, "t//orders": sampleConfigs().Encode, "a//dc1/7": sampleACLs().Encode,
	} {
		b, err := enc()
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(key), b)
	}
	f.Add([]byte("orders/3"), []byte(`{"v":2}`))
	f.Add([]byte("x"), []byte("{}"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		v, err := Decode(key, value)
		if err != nil {
			if v != nil {
				t.Fatalf("an error and a value: %v, %v", v, err)
			}
			return
		}
		// What is read is written again and read as the same.
		var b []byte
		switch v := v.(type) {
		case nil:
			return
		case interface{ Encode() ([]byte, error) }:
			b, err = v.Encode()
		default:
			t.Fatalf("no encoder: %T", v)
		}
		if err != nil {
			t.Fatalf("read, but not written: %v", err)
		}
		again, err := Decode(key, b)
		if err != nil {
			t.Fatalf("written, but not read: %v", err)
		}
		if a, b := asJSON(t, v), asJSON(t, again); a != b {
			t.Fatalf("changed:\n%s\n%s", a, b)
		}
	})
}

func asJSON(t *testing.T, v any) string {
	if r, ok := v.(*Record); ok { // the format read is not what is written
		c := *r
		c.V = 0
		v = &c
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
