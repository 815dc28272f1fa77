package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

// maxAnswer bounds an answer of the admin API: a row for each of some hundred
// thousand partitions.
const maxAnswer = 256 << 20

// Client asks the admin API of a running Lockstep.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// NewClient makes a client for a base URL (http://host:port, or host:port).
// tokenFile may be empty.
func NewClient(base, tokenFile string) (*Client, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is no URL of an admin address: write http://host:port", base)
	}
	c := &Client{base: strings.TrimSuffix(base, "/"), http: &http.Client{
		Timeout: control.MaxWait + 20*time.Second,
		// A token must not follow a redirect to somewhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if tokenFile != "" {
		b, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the admin token: %w", err)
		}
		c.token = strings.TrimSpace(string(b))
	}
	return c, nil
}

// Get asks a path and decodes the answer into v, or copies it when v is a
// *json.RawMessage.
func (c *Client) Get(ctx context.Context, path string, query url.Values, v any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.do(ctx, http.MethodGet, path, nil, v)
}

// Post sends a JSON body and decodes the answer.
func (c *Client) Post(ctx context.Context, path string, body, v any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	return c.do(ctx, http.MethodPost, path, b, v)
}

// ErrUnreachable says that no Lockstep answered.
var ErrUnreachable = errors.New("no running Lockstep answers there: start `lockstep serve`, or name another with --admin")

func (c *Client) do(ctx context.Context, method, path string, body []byte, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("admin API: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w (%w)", ErrUnreachable, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("admin API: read the answer: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(b, v); err != nil {
			return fmt.Errorf("admin API: the answer of %s can't be read: %w", c.base+path, err)
		}
		return nil
	}
	var e control.Error
	if err := json.Unmarshal(b, &e); err == nil && e.Text != "" {
		return &e
	}
	text := strings.TrimSpace(string(b[:min(len(b), 300)]))
	if resp.StatusCode == http.StatusUnauthorized {
		return &control.Error{Kind: control.Failed, Text: text, Remedy: "give --token-file, or --config with admin.token_file"}
	}
	return fmt.Errorf("admin API: %s answered %s: %s", c.base+path, resp.Status, text)
}
