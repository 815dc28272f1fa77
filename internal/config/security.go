package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Auth builds the SASL mechanism, nil when there is none. The password is read
// here and kept nowhere else.
func (s SASL) Auth() (sasl.Mechanism, error) {
	if s.Mechanism == "" {
		return nil, nil
	}
	pass, err := s.password()
	if err != nil {
		return nil, err
	}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.Username, Pass: pass}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.Username, Pass: pass}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.Username, Pass: pass}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("sasl.mechanism %q is not supported", s.Mechanism)
}

func (s SASL) password() (string, error) {
	if s.PasswordEnv != "" {
		p, ok := os.LookupEnv(s.PasswordEnv)
		if !ok {
			return "", fmt.Errorf("sasl.password_env: environment variable %s is not set", s.PasswordEnv)
		}
		return p, nil
	}
	b, err := os.ReadFile(s.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("read sasl.password_file: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
