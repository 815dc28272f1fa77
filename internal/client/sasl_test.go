package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/leaktest"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const canary = "c4nary-S3cret"

func write(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
	return p
}

// first is what a mechanism sends first.
func first(t *testing.T, m sasl.Mechanism, host string) (string, error) {
	t.Helper()
	_, msg, err := m.Authenticate(t.Context(), host)
	return string(msg), err
}

// AU-01: what a login sends is what the file holds then.
func TestSecretsAreReadAtEachLogin(t *testing.T) {
	t.Setenv("AWS_REGION", "eu-central-1")
	for _, x := range []struct {
		name    string
		sasl    func(path string) config.SASL
		content string // %s: the secret
	}{
		{"PLAIN", func(p string) config.SASL { return config.SASL{Mechanism: "PLAIN", Username: "u", PasswordFile: p} }, "  %s\n"},
		{"OAUTHBEARER", func(p string) config.SASL {
			return config.SASL{Mechanism: "OAUTHBEARER", OAuth: config.OAuth{TokenFile: p}}
		}, "%s\n"},
		{"AWS_MSK_IAM", func(p string) config.SASL {
			return config.SASL{Mechanism: "AWS_MSK_IAM", AWS: config.AWS{CredentialsFile: p}}
		}, "[other]\naws_session_token=no\n[default]\n# a note = x\naws_access_key_id = id\naws_secret_access_key=key\naws_session_token = %s\n"},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := write(t, "secret", fmt.Sprintf(x.content, "first-one"))
			m, err := Mechanism(x.sasl(p))
			require.NoError(t, err)
			require.Equal(t, x.name, m.Name())
			msg, err := first(t, m, "127.0.0.1:9092")
			require.NoError(t, err)
			require.Contains(t, msg, "first-one")
			require.NoError(t, os.WriteFile(p, fmt.Appendf(nil, x.content, "second-one"), 0o600))
			msg, err = first(t, m, "127.0.0.1:9092")
			require.NoError(t, err)
			require.Contains(t, msg, "second-one")
			require.NotContains(t, msg, "first-one")
			require.NoError(t, os.Remove(p))
			_, err = first(t, m, "127.0.0.1:9092")
			require.ErrorContains(t, err, "_file: ")
			require.ErrorIs(t, err, os.ErrNotExist)
			_, err = Mechanism(x.sasl(p))
			require.ErrorIs(t, err, os.ErrNotExist, "a missing file ends the start")
		})
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("LOCKSTEP_TEST_PASSWORD", canary)
	m, err := Mechanism(config.SASL{Mechanism: "SCRAM-SHA-256", Username: "u", PasswordEnv: "LOCKSTEP_TEST_PASSWORD"})
	require.NoError(t, err)
	require.Equal(t, "SCRAM-SHA-256", m.Name())
	_, err = Mechanism(config.SASL{Mechanism: "PLAIN", Username: "u", PasswordEnv: "LOCKSTEP_TEST_NO_SUCH"})
	require.ErrorContains(t, err, "sasl.password_env: the environment variable LOCKSTEP_TEST_NO_SUCH is not set")
	for _, k := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		t.Setenv(k, "")
	}
	_, err = Mechanism(config.SASL{Mechanism: "AWS_MSK_IAM"})
	require.ErrorContains(t, err, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set")
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", canary)
	m, err = Mechanism(config.SASL{Mechanism: "AWS_MSK_IAM"})
	require.NoError(t, err)
	msg, err := first(t, m, "b-1.x.kafka.us-east-1.amazonaws.com:9098")
	require.NoError(t, err)
	require.Contains(t, msg, "id/")
	require.NotContains(t, msg, canary, "the secret key signs, and stays here")
}

// A file that can't hold a secret is named, and nothing of what it holds is.
func TestBadSecrets(t *testing.T) {
	token := func(p string) config.SASL {
		return config.SASL{Mechanism: "OAUTHBEARER", OAuth: config.OAuth{TokenFile: p}}
	}
	for _, x := range []struct {
		name, content, want string
		sasl                func(string) config.SASL
	}{
		{"empty", " \n", "is empty", token},
		{"two lines", canary + "\n" + canary, "is no token", token},
		{"injected", canary + "\x01user=admin", "is no token", token},
		{"huge", canary + strings.Repeat("x", 1<<20), "larger than 1 MiB", token},
		{"no section", "[a]\naws_secret_access_key=" + canary, "section [default]", func(p string) config.SASL {
			return config.SASL{Mechanism: "AWS_MSK_IAM", AWS: config.AWS{CredentialsFile: p}}
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := Mechanism(x.sasl(write(t, "secret", x.content)))
			require.ErrorContains(t, err, x.want)
			require.NotContains(t, err.Error(), canary)
		})
	}
}

// idp is a token endpoint.
type idp struct {
	*httptest.Server
	mu     sync.Mutex
	asked  int
	answer func(w http.ResponseWriter, r *http.Request, n int)
}

func newIDP(t *testing.T, ca *tlstest.CA, answer func(w http.ResponseWriter, r *http.Request, n int)) *idp {
	t.Helper()
	i := &idp{answer: answer}
	i.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		i.asked++
		n := i.asked
		i.mu.Unlock()
		i.answer(w, r, n)
	}))
	if ca != nil {
		i.StartTLS()
		i.TLS.Certificates = append(i.TLS.Certificates[:0], ca.Certificate(t, "idp", "127.0.0.1"))
	} else {
		i.Start()
	}
	t.Cleanup(i.Close)
	return i
}

func (i *idp) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

func grant(w http.ResponseWriter, token string, life int) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"access_token": %q, "token_type": "Bearer", "expires_in": %d}`, token, life)
}

// One token serves many logins; it is renewed before it ends; scope, audience, secret and extensions go where they
// belong, over TLS with an authority of its own.
func TestClientCredentials(t *testing.T) {
	ca := tlstest.NewCA(t)
	secrets := write(t, "secret", canary+"\n")
	srv := newIDP(t, ca, func(w http.ResponseWriter, r *http.Request, n int) {
		id, pass, _ := r.BasicAuth()
		require.NoError(t, r.ParseForm())
		if id != "lockstep" || pass != canary || r.Form.Get("grant_type") != "client_credentials" || r.Form.Get("scope") != "kafka mirror" || r.Form.Get("audience") != "brokers" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		grant(w, fmt.Sprintf("token-%d", n), 3600)
	})
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	tlstest.Write(t, caFile, ca.PEM)
	m, err := Mechanism(config.SASL{Mechanism: "OAUTHBEARER", OAuth: config.OAuth{
		TokenURL: srv.URL, ClientID: "lockstep", ClientSecretFile: secrets, Scope: "kafka mirror", Audience: "brokers", CAFile: caFile,
		Extensions: map[string]string{"logicalCluster": "lkc-1"},
	}})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			msg, err := first(t, m, "b:9092")
			if err != nil || msg != "n,,\x01auth=Bearer token-1\x01logicalCluster=lkc-1\x01\x01" {
				t.Errorf("%q %v", msg, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, srv.count())
}

func newTestEndpoint(t *testing.T, url string) *endpoint {
	t.Helper()
	return newEndpoint(config.OAuth{TokenURL: url, ClientID: "lockstep", ClientSecretFile: write(t, "secret", canary)})
}

func TestTokenIsRenewed(t *testing.T) {
	var fail atomic.Bool
	srv := newIDP(t, nil, func(w http.ResponseWriter, _ *http.Request, n int) {
		if fail.Load() {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		grant(w, fmt.Sprintf("token-%d", n), 1000)
	})
	e := newTestEndpoint(t, srv.URL)
	got, err := e.token(t.Context())
	require.NoError(t, err)
	require.Equal(t, "token-1", got)
	require.WithinDuration(t, time.Now().Add(800*time.Second), e.next, 30*time.Second)
	e.next = time.Now() // four fifths are over
	got, err = e.token(t.Context())
	require.NoError(t, err)
	require.Equal(t, "token-2", got)
	fail.Store(true)
	e.next = time.Now()
	got, err = e.token(t.Context())
	require.NoError(t, err, "the old one is still good")
	require.Equal(t, "token-2", got)
	e.ends, e.next = time.Now(), time.Now()
	_, err = e.token(t.Context())
	require.ErrorContains(t, err, "HTTP status 503")
}

// An endpoint that refuses is not stormed, and what it says never tells a secret.
func TestEndpointRefuses(t *testing.T) {
	redirect := func(w http.ResponseWriter, r *http.Request, _ int) {
		http.Redirect(w, r, "http://127.0.0.1:1/?"+canary, http.StatusTemporaryRedirect)
	}
	for _, x := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request, n int)
		want   string
	}{
		{"wrong secret", func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"error": "invalid_client", "error_description": "secret %s is wrong"}`, canary)
		}, "HTTP status 401: invalid_client: check client_id and the client secret"},
		{"echo", func(w http.ResponseWriter, r *http.Request, _ int) { http.Error(w, canary, http.StatusTeapot) }, "HTTP status 418: the answer is not that of a token endpoint"},
		{"a page", func(w http.ResponseWriter, _ *http.Request, _ int) { _, _ = io.WriteString(w, "<html>"+canary) }, "token endpoint"},
		{"no token", func(w http.ResponseWriter, _ *http.Request, _ int) { grant(w, "", 100) }, "token endpoint"},
		{"not a token", func(w http.ResponseWriter, _ *http.Request, _ int) { grant(w, canary+" user=x", 100) }, "is no token"},
		{"redirect", redirect, "answers with a redirect"},
	} {
		t.Run(x.name, func(t *testing.T) {
			srv := newIDP(t, nil, x.answer)
			e := newTestEndpoint(t, srv.URL+"/path?key="+canary)
			for range 50 {
				_, err := e.token(t.Context())
				require.ErrorContains(t, err, x.want)
				require.NotContains(t, err.Error(), canary)
			}
			require.Less(t, srv.count(), 5, "the endpoint is left alone for a while")
			for range 20 {
				e.next = time.Now()
				_, err := e.token(t.Context())
				require.Error(t, err)
			}
			require.Equal(t, endpointMaxWait, e.wait)
		})
	}
	e := newTestEndpoint(t, "http://127.0.0.1:1/path?key="+canary)
	_, err := e.token(t.Context())
	require.ErrorContains(t, err, "connection refused")
	require.NotContains(t, err.Error(), canary)
	// Who gives up waiting says nothing of the endpoint.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.turn <- struct{}{}
	_, err = e.token(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// broker is a scripted broker that lets a client in when check has no error for its first token.
func broker(t *testing.T, mechanism string, check func(token []byte) error) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	ctx := t.Context()
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				defer c.Close()
				for serve(c, mechanism, check) == nil {
				}
			})
		}
	})
	return l.Addr().String()
}

func serve(c net.Conn, mechanism string, check func([]byte) error) error {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	frame := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(c, frame); err != nil {
		return err
	}
	key, version, corr := int16(binary.BigEndian.Uint16(frame)), int16(binary.BigEndian.Uint16(frame[2:])), frame[4:8]
	req := kmsg.RequestForKey(key)
	req.SetVersion(version)
	body := frame[10+max(0, int(int16(binary.BigEndian.Uint16(frame[8:])))):]
	if req.IsFlexible() {
		body = body[1:]
	}
	if err := req.ReadFrom(body); err != nil {
		return err
	}
	resp := req.ResponseKind()
	switch r := req.(type) {
	case *kmsg.ApiVersionsRequest:
		a := resp.(*kmsg.ApiVersionsResponse)
		for k, v := range map[int16]int16{17: 1, 18: 3, 36: 2, 3: 9} {
			a.ApiKeys = append(a.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k, MaxVersion: v})
		}
	case *kmsg.SASLHandshakeRequest:
		h := resp.(*kmsg.SASLHandshakeResponse)
		if h.SupportedMechanisms = []string{mechanism}; r.Mechanism != mechanism {
			h.ErrorCode = 33
		}
	case *kmsg.SASLAuthenticateRequest:
		a := resp.(*kmsg.SASLAuthenticateResponse)
		if err := check(r.SASLAuthBytes); err != nil {
			text := err.Error()
			a.ErrorCode, a.ErrorMessage = 58, &text
		} else if mechanism == "AWS_MSK_IAM" {
			a.SASLAuthBytes = []byte(`{"version":"2020_10_22","request-id":"1"}`)
		}
	case *kmsg.MetadataRequest:
		m := resp.(*kmsg.MetadataResponse)
		host, port, _ := net.SplitHostPort(c.LocalAddr().String())
		m.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: host}}
		_, _ = fmt.Sscan(port, &m.Brokers[0].Port)
	}
	out := append([]byte{0, 0, 0, 0}, corr...)
	if resp.IsFlexible() && key != 18 {
		out = append(out, 0)
	}
	out = resp.AppendTo(out)
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	_, err := c.Write(out)
	return err
}

// Both kinds of own connections log in by AWS_MSK_IAM and by OAUTHBEARER, with what the brokers of these expect.
func TestMechanismsOnTheWire(t *testing.T) {
	t.Setenv("AWS_REGION", "eu-central-1") // the broker's name doesn't tell
	keys := write(t, "keys", "[lockstep]\naws_access_key_id=AKIDEXAMPLE\naws_secret_access_key="+canary+"\naws_session_token=session/token==\n")
	for _, x := range []struct {
		sasl  config.SASL
		check func(token []byte) error
	}{
		{config.SASL{Mechanism: "AWS_MSK_IAM", AWS: config.AWS{CredentialsFile: keys, Profile: "lockstep"}}, checkAWS},
		{config.SASL{Mechanism: "OAUTHBEARER", OAuth: config.OAuth{TokenFile: write(t, "token", "a.b.c"), Extensions: map[string]string{"x": "y"}}}, func(token []byte) error {
			if string(token) != "n,,\x01auth=Bearer a.b.c\x01x=y\x01\x01" {
				return fmt.Errorf("%q", token)
			}
			return nil
		}},
	} {
		t.Run(x.sasl.Mechanism, func(t *testing.T) {
			addr := broker(t, x.sasl.Mechanism, x.check)
			sec, err := NewSecurity("test", config.TLS{}, x.sasl)
			require.NoError(t, err)
			c, err := (&kconn.Dialer{SASL: []sasl.Mechanism{sec.SASL}}).Init().Dial(t.Context(), addr)
			require.NoError(t, err)
			require.NoError(t, c.Close())
			cl, err := kgo.NewClient(Options([]string{addr}, sec)...)
			require.NoError(t, err)
			defer cl.Close()
			require.NoError(t, cl.Ping(t.Context()))

			refuses := broker(t, x.sasl.Mechanism, func([]byte) error { return fmt.Errorf("nobody gets in") })
			_, err = (&kconn.Dialer{SASL: []sasl.Mechanism{sec.SASL}}).Init().Dial(t.Context(), refuses)
			require.ErrorIs(t, err, kconn.ErrCredentials)
			require.ErrorContains(t, err, "nobody gets in")
			require.NotContains(t, err.Error(), canary)
		})
	}
}

// checkAWS is what an MSK broker wants of a payload (2020_10_22).
func checkAWS(token []byte) error {
	var got map[string]string
	if err := json.Unmarshal(token, &got); err != nil {
		return err
	}
	for k, want := range map[string]string{
		"version": "2020_10_22", "host": "127.0.0.1", "action": "kafka-cluster:Connect", "x-amz-algorithm": "AWS4-HMAC-SHA256",
		"x-amz-security-token": "session/token==", "x-amz-signedheaders": "host", "x-amz-expires": "900",
	} {
		if got[k] != want {
			return fmt.Errorf("%s is %q", k, got[k])
		}
	}
	at, err := time.Parse("20060102T150405Z", got["x-amz-date"])
	if err != nil || time.Since(at).Abs() > time.Hour {
		return fmt.Errorf("x-amz-date is %q", got["x-amz-date"])
	}
	if want := "AKIDEXAMPLE/" + at.Format("20060102") + "/eu-central-1/kafka-cluster/aws4_request"; got["x-amz-credential"] != want {
		return fmt.Errorf("x-amz-credential is %q", got["x-amz-credential"])
	}
	if len(got["x-amz-signature"]) != 64 || got["user-agent"] == "" || strings.Contains(string(token), canary) || len(got) != 11 {
		return fmt.Errorf("payload %s", token)
	}
	return nil
}

// A user that is refused is tried now and then, however many connections want to log in, by either client; when it is
// accepted again, all get in.
func TestNoLoginStorm(t *testing.T) {
	var tries atomic.Int64
	var accept atomic.Bool
	accept.Store(true)
	addr := broker(t, "PLAIN", func([]byte) error {
		tries.Add(1)
		if accept.Load() {
			return nil
		}
		return fmt.Errorf("nobody gets in")
	})
	sec, err := NewSecurity("test", config.TLS{}, config.SASL{Mechanism: "PLAIN", Username: "u", PasswordFile: write(t, "p", canary)})
	require.NoError(t, err)
	dial := func(ctx context.Context) error {
		c, err := (&kconn.Dialer{SASL: []sasl.Mechanism{sec.SASL}}).Init().Dial(ctx, addr)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	ping := func(ctx context.Context) error {
		cl, err := kgo.NewClient(append(Options([]string{addr}, sec), kgo.RequestRetries(0))...)
		if err != nil {
			return err
		}
		defer cl.Close()
		return cl.Ping(ctx)
	}
	many := func(ctx context.Context, n int) (failed int64) {
		var wg sync.WaitGroup
		var bad atomic.Int64
		for i := range 2 * n {
			wg.Go(func() {
				if []func(context.Context) error{dial, ping}[i%2](ctx) != nil {
					bad.Add(1)
				}
			})
		}
		wg.Wait()
		return bad.Load()
	}
	require.Zero(t, many(t.Context(), 20))
	require.EqualValues(t, 40, tries.Load())

	accept.Store(false)
	tries.Store(0)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		require.NotZero(t, many(ctx, 10))
	}
	require.Less(t, tries.Load(), int64(20))
	require.ErrorContains(t, dial(t.Context()), "not accepted")
	l := sec.SASL.(*logins)
	for range 20 {
		l.mu.Lock()
		l.next = time.Now()
		clear(l.open)
		l.mu.Unlock()
		require.ErrorContains(t, dial(t.Context()), "nobody gets in")
	}
	l.mu.Lock()
	require.Greater(t, time.Until(l.next), loginMaxWait/3)
	require.LessOrEqual(t, time.Until(l.next), loginMaxWait)
	l.next = time.Now()
	l.mu.Unlock()

	accept.Store(true)
	require.NoError(t, dial(t.Context()))
	require.Zero(t, many(t.Context(), 20))
	require.Empty(t, l.open)
}
