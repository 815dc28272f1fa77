package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// answers is an admin API that answers commands from a list, the last one for ever.
func answers(t *testing.T, list ...any) (url string, got *[]control.Request) {
	t.Helper()
	got = &[]control.Request{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req control.Request
		_ = json.NewDecoder(r.Body).Decode(&req)
		*got = append(*got, req)
		a := list[min(len(*got), len(list))-1]
		if e, ok := a.(*control.Error); ok {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(e)
			return
		}
		_ = json.NewEncoder(w).Encode(a)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, got
}

func runCLI(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	cmd := root()
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	if err != nil {
		b.WriteString(err.Error())
	}
	return b.String(), exitCode(err)
}

func result(done, failed bool) *control.Result {
	return &control.Result{Verb: control.Stop, Done: done, Failed: failed, Partitions: []control.Outcome{{
		Partition: control.Partition{
			Mirror: "dc1", Topic: "orders", Partition: 3, State: "STOPPED",
			Left: &ledger.Left{Offset: 41, Epoch: 7, Timestamp: 1_700_000_000_000, SourceEnd: 44},
		},
		Outcome: control.OutcomeDone,
	}}}
}

// What a stop means: a source whose end is not known is not one that had nothing.
func TestLeftBehind(t *testing.T) {
	of := func(lefts ...*ledger.Left) *control.Result {
		r := &control.Result{Done: true}
		for _, l := range lefts {
			r.Partitions = append(r.Partitions, control.Outcome{Partition: control.Partition{State: "STOPPED", Left: l}})
		}
		return r
	}
	all, unknown := &ledger.Left{Offset: 7, SourceEnd: 7}, &ledger.Left{Offset: 7, SourceEnd: -1}
	require.Contains(t, leftBehind(of(all, all)), "Nothing that the source was known to have is missing here.")
	lacking := of(all, all)
	lacking.Partitions[1].Lacks = true
	require.Contains(t, leftBehind(lacking), "Of 1 compacted partition values of keys may be missing")
	require.Contains(t, leftBehind(lacking), "No later record that the source was known to have is missing here.")
	require.Contains(t, leftBehind(of(unknown, nil)), "The source's ends are not known")
	require.Contains(t, leftBehind(of(all, unknown)), "missing here; of 1 partition the source's end is not known")
	require.Contains(t, leftBehind(of(&ledger.Left{Offset: 7, SourceEnd: 9}, unknown)), "Not here: at least 2 offsets of the source; of 1 partition the source's end is not known")
}

// The exit codes that docs/cli.md promises; a verb that waits asks on without
// writing anything again.
func TestExitCodes(t *testing.T) {
	url, got := answers(t, result(false, false), result(false, false), result(true, false))
	out, code := runCLI(t, "stop", "--topic", "orders", "--admin", url)
	require.Zero(t, code, out)
	for _, want := range []string{"41", "7", "2023-11-14T22:13:20.000Z", "44", "3"} {
		require.Contains(t, out, want, "what was left behind")
	}
	require.Contains(t, out, "1 partition is STOPPED: clients may write to it through Lockstep.\nNot here: at least 3 offsets of the source.")
	require.Len(t, *got, 3)
	require.Equal(t, []bool{false, true, true}, []bool{(*got)[0].Poll, (*got)[1].Poll, (*got)[2].Poll})
	require.Equal(t, []string{"orders"}, (*got)[0].Topics)
	require.NotEmpty(t, (*got)[0].By)

	url, _ = answers(t, result(false, true))
	_, code = runCLI(t, "stop", "--all", "--admin", url)
	require.Equal(t, exitFailed, code)

	url, _ = answers(t, result(false, false))
	out, code = runCLI(t, "stop", "--all", "--timeout", "1ms", "--admin", url)
	require.Equal(t, exitTimedOut, code)
	require.Contains(t, out, "Run it again")
	_, code = runCLI(t, "stop", "--all", "--no-wait", "--admin", url)
	require.Zero(t, code)

	url, _ = answers(t, &control.Error{Kind: control.Refused, Text: "start is refused", Remedy: "stop it first", Partitions: []string{"a-0 MIRRORING"}})
	out, code = runCLI(t, "start", "--all", "--admin", url)
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "a-0 MIRRORING")
	require.Contains(t, out, "stop it first")

	for _, args := range [][]string{
		{"stop", "--all", "--regex", "x"},
		{"stop", "--shape"},
		{"explode"},
		{"list", "more"},
		{"set", "--mirror", "dc1"},
		{"diverged", "export"},
		{"list", "--admin", "ftp://x"},
	} {
		out, code := runCLI(t, args...)
		require.Equal(t, exitUsage, code, "%v: %s", args, out)
	}
	out, code = runCLI(t, "list", "--admin", "127.0.0.1:1")
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "lockstep serve")

	url, _ = answers(t, result(true, false))
	out, code = runCLI(t, "stop", "--all", "--json", "--admin", url)
	require.Zero(t, code)
	require.NoError(t, json.Unmarshal([]byte(out), &control.Result{}))
}

// All commands show times alike; a topic that is missing has no partition number.
func TestSmallThings(t *testing.T) {
	lease := time.Date(2030, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"instances": []control.Instance{{ID: "i1", Lease: lease, Live: true}}})
	}))
	t.Cleanup(srv.Close)
	for _, verb := range []string{"status", "instances"} {
		out, code := runCLI(t, verb, "--admin", srv.URL)
		require.Zero(t, code, out)
		require.Contains(t, out, "2030-01-02T02:04:05Z", verb)
	}
	var b bytes.Buffer
	cmd := root()
	cmd.SetOut(&b)
	require.NoError(t, printVerify(cmd, &verify.Report{Partitions: []verify.PartitionReport{{Topic: "gone", Partition: -1}}}))
	require.NotContains(t, b.String(), "-1")
}

// The last line of status doesn't say that all is well where topics are not
// mirrored, or nothing is.
func TestStatusLastLine(t *testing.T) {
	require.Equal(t, "All 3 partitions are where they are wanted.", allWell(0, 3))
	require.Contains(t, allWell(2, 3), "not mirrored")
	require.Contains(t, allWell(0, 0), "No partition is mirrored")
}

// What a start cut, and where to find it: also when the ledger doesn't
// say.
func TestStartSaysWhatWasCut(t *testing.T) {
	of := func(cuts ...*ledger.Cut) *control.Result {
		r := &control.Result{Verb: control.Start, Done: true}
		for i, c := range cuts {
			r.Partitions = append(r.Partitions, control.Outcome{
				Partition: control.Partition{Mirror: "dc1", Topic: "t" + string(rune('a'+i)), State: "MIRRORING", Cut: c}, Outcome: control.OutcomeDone,
			})
		}
		return r
	}
	none, some := &ledger.Cut{From: 4, End: 4}, &ledger.Cut{From: 40, End: 52}
	url, _ := answers(t, of(none, some, nil))
	out, code := runCLI(t, "start", "--all", "--admin", url)
	require.Zero(t, code, out)
	require.Regexp(t, `ta .* done +│ - +│ 0 `, out)
	require.Regexp(t, `tb .* done +│ 40 +│ 12 `, out)
	require.Regexp(t, `tc .* done +│ - +│ - `, out)
	require.Contains(t, out, "12 offsets that the source does not have were cut.")
	require.Contains(t, out, "  lockstep diverged list --topic tb\n`lockstep diverged export`")
	require.Contains(t, out, "Of 1 partition the ledger does not say it")
	require.NotContains(t, out, "--topic ta")

	require.Equal(t, "Nothing that was shown here was cut.", cutAway(of(none, none)))
	require.Contains(t, cutAway(of(nil)), "the ledger does not say")
	many := cutAway(of(some, some, some, some, some, some, some))
	require.Contains(t, many, "84 offsets")
	require.Contains(t, many, "… and 2 topics more")
	require.NotContains(t, many, "--topic tf")
}

// After a take-over while the source is away an instance knows no groups: that
// is said, and where their offsets are, instead of that there are none.
func TestDescribeGroupsWhileTheSourceIsAway(t *testing.T) {
	since := time.Unix(1_700_000_000, 0).UTC()
	var groups []control.Group
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/groups":
			_ = json.NewEncoder(w).Encode(map[string]any{"groups": groups})
		case "/v1/mirrors":
			_ = json.NewEncoder(w).Encode(map[string]any{"mirrors": []control.MirrorStatus{{Name: "dc1", SourceAway: &since}, {Name: "dc2"}}})
		}
	}))
	t.Cleanup(srv.Close)
	const away = "The source of mirror dc1 is away since 2023-11-14T22:13:20Z."
	out, code := runCLI(t, "describe", "--groups", "--admin", srv.URL)
	require.Zero(t, code, out)
	require.Contains(t, out, away)
	require.Contains(t, out, "kafka-consumer-groups.sh")
	require.NotContains(t, out, "No offsets")
	out, _ = runCLI(t, "describe", "--groups", "--mirror", "dc2", "--admin", srv.URL)
	require.Contains(t, out, "No offsets of groups are known here")
	groups = []control.Group{{Mirror: "dc1", Group: "g", Topic: "t", State: "synced"}}
	out, _ = runCLI(t, "describe", "--groups", "--admin", srv.URL)
	require.Contains(t, out, "synced")
	require.Contains(t, out, away)
}
