// Package admin is the HTTP side of a running Lockstep: health, metrics and
// status, on loopback or behind a token.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Options of a Server.
type Options struct {
	Address   string                      // host:port
	TokenFile string                      // empty: no token is asked for
	Gatherer  prometheus.Gatherer         // what /metrics shows
	Ready     func() error                // nil: ready; else the reason, shown by /readyz
	Status    func() any                  // JSON of /v1/status
	Routes    map[string]http.HandlerFunc // further patterns, behind the token too
}

// Server listens from New on and serves in Run.
type Server struct {
	ln  net.Listener
	srv *http.Server
}

// New opens the listener, so that an address in use is an error at start.
func New(o Options) (*Server, error) {
	var token [sha256.Size]byte
	guarded := o.TokenFile != ""
	if guarded {
		b, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read admin.token_file: %w", err)
		}
		t := strings.TrimSpace(string(b))
		if t == "" {
			return nil, fmt.Errorf("admin.token_file %s is empty", o.TokenFile)
		}
		token = sha256.Sum256([]byte(t))
	}
	guard := func(h http.Handler) http.Handler {
		if !guarded {
			return h
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			sum := sha256.Sum256([]byte(given))
			if subtle.ConstantTimeCompare(sum[:], token[:]) != 1 {
				http.Error(w, "a bearer token is needed (admin.token_file)", http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", guard(promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{})))
	mux.Handle("GET /v1/status", guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(o.Status())
	})))
	for pattern, h := range o.Routes {
		mux.Handle(pattern, guard(h))
	}
	ln, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on admin.address: %w", err)
	}
	return &Server{ln: ln, srv: &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
	}}, nil
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Close gives the listener back when Run is never called.
func (s *Server) Close() error { return s.ln.Close() }

// Run serves until ctx ends, then lets open requests finish for a second.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.srv.Serve(s.ln) }()
	select {
	case err := <-done:
		return fmt.Errorf("admin server: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := s.srv.Shutdown(end)
	if err != nil {
		err = s.srv.Close()
	}
	if e := <-done; e != nil && !errors.Is(e, http.ErrServerClosed) {
		return e
	}
	return err
}
