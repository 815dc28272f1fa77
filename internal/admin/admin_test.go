package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/leaktest"
)

func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

func TestAdmin(t *testing.T) {
	defer leaktest.None(t)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lockstep_test"}, func() float64 { return 7 }))
	var ready atomic.Bool
	s, err := New(Options{
		Address: "127.0.0.1:0", TokenFile: token, Gatherer: reg,
		Ready: func() error {
			if ready.Load() {
				return nil
			}
			return errors.New("the ledger has not been read yet")
		},
		Status: func() any { return map[string]int{"partitions": 3} },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	base := "http://" + s.Addr().String()

	code, body := get(t, base+"/livez", "")
	require.Equal(t, 200, code, body)
	code, body = get(t, base+"/readyz", "")
	require.Equal(t, 503, code)
	require.Contains(t, body, "the ledger has not been read yet")
	ready.Store(true)
	code, _ = get(t, base+"/readyz", "")
	require.Equal(t, 200, code)
	for _, bad := range []string{"", "s3cre", "s3cret "} {
		code, _ = get(t, base+"/metrics", bad)
		if bad == "s3cret " { // header values are trimmed by HTTP itself
			require.Equal(t, 200, code)
			continue
		}
		require.Equal(t, 401, code)
		code, _ = get(t, base+"/v1/status", bad)
		require.Equal(t, 401, code)
	}
	code, body = get(t, base+"/metrics", "s3cret")
	require.Equal(t, 200, code)
	require.Contains(t, body, "lockstep_test 7")
	code, body = get(t, base+"/v1/status", "s3cret")
	require.Equal(t, 200, code)
	require.JSONEq(t, `{"partitions": 3}`, body)

	cancel()
	require.NoError(t, <-done)
	_, err = New(Options{Address: "127.0.0.1:0", TokenFile: filepath.Join(t.TempDir(), "none")})
	require.ErrorContains(t, err, "admin.token_file")
}
