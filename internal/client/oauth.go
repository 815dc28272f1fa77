package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

const (
	endpointTimeout = 10 * time.Second
	endpointMinWait = time.Second
	endpointMaxWait = 30 * time.Second
	// unknownLife is how long a token is used whose end the endpoint doesn't tell.
	unknownLife = time.Minute
	// minRest is the least rest of a token's life that makes a session: shorter ones
	// can't be renewed (brokers want a second between two authentications).
	minRest = 5 * time.Second
)

// endpoint gets tokens from a token endpoint by client credentials. One token
// serves all connections of a cluster; it is renewed when four fifths of its life
// are over, in good time for sessions that end with it. An endpoint that refuses is
// left alone for a while, however many connections ask.
type endpoint struct {
	o    config.OAuth
	turn chan struct{} // held by who may look at what follows
	have string
	ends time.Time // have is refused by brokers from here on
	next time.Time // have is to be renewed from here on; or when the endpoint may be asked again
	wait time.Duration
	err  error // of the last try
}

func newEndpoint(o config.OAuth) *endpoint { return &endpoint{o: o, turn: make(chan struct{}, 1)} }

// try reads what the configuration names, and asks nobody.
func (e *endpoint) try() error {
	_, _, err := e.settings()
	return err
}

// token is a token to log in with.
func (e *endpoint) token(ctx context.Context) (string, error) {
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return "", fmt.Errorf("wait for a token: %w", ctx.Err())
	}
	if time.Now().After(e.next) {
		e.renew(ctx)
	}
	if e.have != "" && time.Now().Before(e.ends) {
		return e.have, nil // also when it could not be renewed yet
	}
	return "", e.err
}

// renew asks the endpoint. Holds turn.
func (e *endpoint) renew(ctx context.Context) {
	asked := time.Now()
	t, err := e.ask(ctx)
	switch {
	case err == nil && !isToken(t.AccessToken):
		err = fmt.Errorf("sasl.oauth.token_url: what %s answered %w", e.host(), errToken)
	case err == nil && !t.Expiry.IsZero() && !t.Expiry.After(asked):
		err = fmt.Errorf("sasl.oauth.token_url: the token that %s answered has expired: compare the clocks", e.host())
	}
	if err != nil {
		if ctx.Err() != nil && e.err != nil {
			return // says nothing of the endpoint
		}
		e.wait = min(max(2*e.wait, endpointMinWait), endpointMaxWait)
		e.next = time.Now().Add(e.wait/2 + rand.N(e.wait/2+1))
		e.err = err
		return
	}
	life := unknownLife
	if !t.Expiry.IsZero() {
		life = t.Expiry.Sub(asked)
	}
	e.have, e.ends, e.next = t.AccessToken, asked.Add(life), asked.Add(min(life*4/5, life-minRest))
	e.wait, e.err = 0, nil
}

// host of the endpoint: its path or query may say more than a log should.
func (e *endpoint) host() string {
	u, err := url.Parse(e.o.TokenURL)
	if err != nil {
		return "the endpoint"
	}
	return u.Host
}

func (e *endpoint) ask(ctx context.Context) (*oauth2.Token, error) {
	c, hc, err := e.settings()
	if err != nil {
		return nil, err
	}
	defer hc.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, endpointTimeout)
	defer cancel()
	t, err := c.Token(context.WithValue(ctx, oauth2.HTTPClient, hc))
	if err != nil {
		return nil, fmt.Errorf("token endpoint %s: %w", e.host(), explain(err))
	}
	return t, nil
}

// explain leaves out of an error what the endpoint may have repeated of the
// request: of its answer only the words that RFC 6749 has for it remain.
func explain(err error) error {
	var re *oauth2.RetrieveError
	if errors.As(err, &re) {
		what := "the answer is not that of a token endpoint"
		switch {
		case re.ErrorCode != "" && oauthErrors[re.ErrorCode] != "":
			what = re.ErrorCode + ": " + oauthErrors[re.ErrorCode]
		case re.ErrorCode != "":
			what = "an error that RFC 6749 doesn't know"
		}
		status := "no status"
		if re.Response != nil {
			status = fmt.Sprint(re.Response.StatusCode)
		}
		return fmt.Errorf("HTTP status %s: %s", status, what)
	}
	var ue *url.Error
	if errors.As(err, &ue) { // its text has the whole URL
		return ue.Err
	}
	return err
}

// oauthErrors are the errors of RFC 6749, 5.2, with their remedies.
var oauthErrors = map[string]string{
	"invalid_request":        "the endpoint misses something: check scope and audience",
	"invalid_client":         "check client_id and the client secret",
	"invalid_grant":          "the endpoint refuses client credentials",
	"unauthorized_client":    "this client may not use client credentials",
	"unsupported_grant_type": "the endpoint doesn't know client credentials",
	"invalid_scope":          "check scope",
}

var errRedirect = errors.New("the token endpoint answers with a redirect, which would take the secret elsewhere: give its own URL")

// settings reads the files that the configuration names.
func (e *endpoint) settings() (*clientcredentials.Config, *http.Client, error) {
	pass, err := secret("sasl.oauth.client_secret", e.o.ClientSecretFile, e.o.ClientSecretEnv)
	if err != nil {
		return nil, nil, err
	}
	tc := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.o.CAFile != "" {
		pem, err := os.ReadFile(e.o.CAFile)
		if err != nil {
			return nil, nil, fmt.Errorf("sasl.oauth.ca_file: %w", err)
		}
		tc.RootCAs = x509.NewCertPool()
		if !tc.RootCAs.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("sasl.oauth.ca_file: %s has no certificate", e.o.CAFile)
		}
	}
	c := &clientcredentials.Config{
		ClientID: e.o.ClientID, ClientSecret: pass, TokenURL: e.o.TokenURL,
		Scopes: strings.Fields(e.o.Scope), AuthStyle: oauth2.AuthStyleInHeader,
	}
	if e.o.Audience != "" {
		c.EndpointParams = url.Values{"audience": {e.o.Audience}}
	}
	return c, &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tc, DisableKeepAlives: true, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
	}, nil
}
