package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// Mechanism is the SASL mechanism of a configuration, nil for none. Secrets are
// read here once, so that a mistake ends the start, and again at each login, so
// that new ones are used without a restart (AU-01); none is kept.
func Mechanism(s config.SASL) (sasl.Mechanism, error) {
	var m sasl.Mechanism
	var try func() error
	password := func() (string, error) { return secret("sasl.password", s.PasswordFile, s.PasswordEnv) }
	switch s.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		m = plain.Plain(func(context.Context) (plain.Auth, error) {
			p, err := password()
			return plain.Auth{User: s.Username, Pass: p}, err
		})
		try = func() error { _, err := password(); return err }
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		login := func(context.Context) (scram.Auth, error) {
			p, err := password()
			return scram.Auth{User: s.Username, Pass: p}, err
		}
		if m = scram.Sha256(login); s.Mechanism == "SCRAM-SHA-512" {
			m = scram.Sha512(login)
		}
		try = func() error { _, err := password(); return err }
	case "OAUTHBEARER":
		token := func(context.Context) (string, error) { return tokenFile(s.OAuth.TokenFile) }
		try = func() error { _, err := token(context.Background()); return err }
		if s.OAuth.TokenURL != "" {
			e := newEndpoint(s.OAuth)
			token, try = e.token, e.try
		}
		m = oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			t, err := token(ctx)
			return oauth.Auth{Token: t, Extensions: s.OAuth.Extensions}, err
		})
	case "AWS_MSK_IAM":
		m = aws.ManagedStreamingIAM(func(context.Context) (aws.Auth, error) { return awsKeys(s.AWS) })
		try = func() error { _, err := awsKeys(s.AWS); return err }
	default:
		return nil, fmt.Errorf("sasl.mechanism %q is not supported", s.Mechanism)
	}
	if err := try(); err != nil {
		return nil, err
	}
	return m, nil
}

// maxSecret is the most that is read of a file with a secret.
const maxSecret = 1 << 20

// readSecret is a file's content without white space around it. The error never
// has any of it.
func readSecret(key, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	switch b = bytes.TrimSpace(b); {
	case err != nil:
		return "", fmt.Errorf("%s: %w", key, err)
	case len(b) == 0:
		return "", fmt.Errorf("%s: %s is empty", key, path)
	case len(b) > maxSecret:
		return "", fmt.Errorf("%s: %s is larger than 1 MiB", key, path)
	}
	return string(b), nil
}

// secret is a secret from a file or from the environment.
func secret(key, file, env string) (string, error) {
	if env == "" {
		return readSecret(key+"_file", file)
	}
	v, ok := os.LookupEnv(env)
	if !ok || v == "" {
		return "", fmt.Errorf("%s_env: the environment variable %s is not set, or empty", key, env)
	}
	return v, nil
}

var errToken = errors.New("is no token: it has characters that none can have")

// tokenFile reads a token.
func tokenFile(path string) (string, error) {
	t, err := readSecret("sasl.oauth.token_file", path)
	if err == nil && !isToken(t) {
		err = fmt.Errorf("sasl.oauth.token_file: what %s holds %w", path, errToken)
	}
	if err != nil {
		return "", err
	}
	return t, nil
}

// isToken tells whether t can stand behind "Bearer " (RFC 6750, 2.1).
func isToken(t string) bool {
	return t != "" && !strings.ContainsFunc(t, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-._~+/=", r)
	})
}
