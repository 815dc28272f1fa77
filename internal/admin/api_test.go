package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// served is the API of a service on an embedded ledger with one partition.
func served(t *testing.T, token string) (base string, view *ledger.View) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.MetadataMinAge(50 * time.Millisecond)}
	cl, err := kgo.NewClient(opts...)
	require.NoError(t, err)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(cl), 1))
	cl.Close()
	view = ledger.NewView(ledger.ViewOptions{Client: opts, FetchWait: 50 * time.Millisecond})
	w, err := ledger.NewWriter(ledger.WriterOptions{Client: opts, View: view})
	require.NoError(t, err)
	o := Options{
		Address: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Ready: func() error { return nil }, Status: func() any { return nil },
		Routes: API(control.New(control.Options{View: view, Writer: w, ID: "me", Mirrors: []control.Mirror{{Name: "dc1"}}})),
	}
	if token != "" {
		o.TokenFile = filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(o.TokenFile, []byte(token), 0o600))
	}
	s, err := New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- view.Run(ctx) }()
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); _, _ = <-done, <-done; w.Close(); c.Close() })
	require.NoError(t, view.WaitReady(t.Context()))
	require.NoError(t, w.Acquire(t.Context(), ledger.PartitionOf("orders", 0)))
	require.NoError(t, w.Put(t.Context(), &ledger.Record{
		Mirror: "dc1", Topic: "orders", State: epoch.StateMirroring, Desired: epoch.StateMirroring, StateEpoch: 1, Lineage: "l",
	}))
	return "http://" + s.Addr().String(), view
}

func post(t *testing.T, url, token, contentType, host, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", contentType)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if host != "" {
		req.Host = host
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	var e control.Error
	_ = json.NewDecoder(resp.Body).Decode(&e)
	if resp.StatusCode != http.StatusOK {
		require.NotEmpty(t, e.Text, "an error is JSON")
		require.NotEmpty(t, e.Remedy, "and has a remedy")
	}
	return resp.StatusCode, e.Text
}

// Bad requests are refused as JSON with a remedy, and store nothing.
func TestCommandRefusals(t *testing.T) {
	base, view := served(t, "")
	const js = "application/json"
	for _, x := range []struct {
		kind, host, body string
		code             int
		text             string
	}{
		{js, "", `{"verb":"explode","all":true}`, 400, "unknown verb"},
		{js, "", `{"verb":"stop","all":true,"shape":1}`, 400, "shape"},
		{js, "", `{"verb":"stop","all":true}{}`, 400, "follows"},
		{js, "", `not JSON`, 400, "can't be read"},
		{js, "", `{"verb":"stop"}`, 400, "no topics"},
		{js, "", `{"verb":"stop","topics":["nowhere"]}`, 404, "nowhere"},
		{js, "", `{"verb":"start","all":true}`, 409, "refused"},
		{js, "", `{"verb":"stop","topics":["` + strings.Repeat("x", maxBody) + `"]}`, 400, "larger"},
		{"text/plain", "", `{"verb":"stop","all":true}`, 400, "content type"},
		{js, "evil.example:80", `{"verb":"stop","all":true}`, 400, "without token"},
	} {
		code, text := post(t, base+"/v1/commands", "", x.kind, x.host, x.body)
		require.Equal(t, x.code, code, x.body[:min(len(x.body), 60)])
		require.Contains(t, text, x.text)
	}
	require.Nil(t, view.Partition("orders", 0).Command)
	code, _ := post(t, base+"/v1/settings", "", js, "", `{"mirror":"dc1","unclean_leader_election":"perhaps"}`)
	require.Equal(t, 400, code)
	code, body := get(t, base+"/v1/partitions?shape=1", "")
	require.Equal(t, 400, code)
	require.Contains(t, body, "remedy")
	code, _ = get(t, base+"/v1/commands", "")
	require.Equal(t, http.StatusMethodNotAllowed, code)

	code, _ = post(t, base+"/v1/commands", "", js, "", `{"verb":"stop","all":true,"by":"me"}`)
	require.Equal(t, 200, code)
	require.Eventually(t, func() bool { return view.Partition("orders", 0).Command != nil }, time.Minute, 10*time.Millisecond)
	require.Equal(t, "stop me", view.Partition("orders", 0).Command.By)
}

// With a token everything but health asks for it; the client brings it.
func TestTokenAndClient(t *testing.T) {
	base, _ := served(t, "s3cret")
	for _, path := range []string{"/v1/mirrors", "/v1/partitions", "/v1/instances"} {
		code, _ := get(t, base+path, "")
		require.Equal(t, http.StatusUnauthorized, code, path)
	}
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	c, err := NewClient(base, token)
	require.NoError(t, err)
	var got struct {
		Partitions []control.Partition `json:"partitions"`
	}
	require.NoError(t, c.Get(t.Context(), "/v1/partitions", url.Values{"topic": {"orders"}}, &got))
	require.Equal(t, epoch.StateMirroring, got.Partitions[0].State)
	var ce *control.Error
	require.ErrorAs(t, c.Post(t.Context(), "/v1/commands", control.Request{Verb: control.Resume, Selection: control.Selection{All: true}}, &struct{}{}), &ce)
	require.Equal(t, control.Refused, ce.Kind)
	require.Equal(t, []string{"orders-0 MIRRORING"}, ce.Partitions)
	bare, err := NewClient(strings.TrimPrefix(base, "http://"), "")
	require.NoError(t, err)
	require.ErrorContains(t, bare.Get(t.Context(), "/v1/mirrors", nil, &got), "--token-file")
	away, err := NewClient("127.0.0.1:1", "")
	require.NoError(t, err)
	require.ErrorIs(t, away.Get(t.Context(), "/v1/mirrors", nil, &got), ErrUnreachable)
	_, err = NewClient("ftp://x", "")
	require.Error(t, err)
}
