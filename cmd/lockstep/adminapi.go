package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/admin"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/control"
)

// The exit codes of every verb, as docs/cli.md has them.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitTimedOut = 3
)

const exitCodes = "Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 not done within --timeout (run it again: it goes on)."

// usageError is a wrong use of the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// exitCode of an error that ends the program.
func exitCode(err error) int {
	var said *saidError
	var usage *usageError
	var ce *control.Error
	var ran *runError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &said):
		return said.code
	case !errors.As(err, &ran), errors.As(err, &usage), errors.As(err, &ce) && ce.Kind == control.BadRequest:
		return exitUsage
	}
	return exitFailed
}

// target is where the running Lockstep is.
type target struct{ config, admin, tokenFile string }

func (t *target) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&t.config, "config", "c", "lockstep.yaml", "configuration file that names the admin address and token")
	f.StringVar(&t.admin, "admin", "", "admin address of any running Lockstep, http://host:port; default: the configuration's")
	f.StringVar(&t.tokenFile, "token-file", "", "file with the admin token; default: the configuration's")
}

// client makes the client; with --admin no configuration is needed.
func (t *target) client(cmd *cobra.Command) (*admin.Client, error) {
	if t.admin != "" {
		token := t.tokenFile
		if token == "" && cmd.Flags().Changed("config") {
			c, err := config.Load(t.config)
			if err != nil {
				return nil, err
			}
			token = c.Admin.TokenFile
		}
		c, err := admin.NewClient(t.admin, token)
		if err != nil {
			return nil, &usageError{err}
		}
		return c, nil
	}
	c, err := config.Load(t.config)
	if err != nil {
		return nil, fmt.Errorf("%w\nor name a running Lockstep with --admin", err)
	}
	if c.Admin.Address == "" {
		return nil, &usageError{fmt.Errorf("%s has no admin.address: set one, or name another Lockstep with --admin", t.config)}
	}
	token := t.tokenFile
	if token == "" {
		token = c.Admin.TokenFile
	}
	return admin.NewClient(c.Admin.Address, token)
}

// selection is the flags that choose partitions.
type selection struct{ control.Selection }

func (s *selection) flags(cmd *cobra.Command, change bool) {
	f := cmd.Flags()
	f.StringVarP(&s.Mirror, "mirror", "m", "", "only partitions of this mirror")
	f.StringArrayVarP(&s.Topics, "topic", "t", nil, "a topic; repeat it for several")
	f.StringVar(&s.Regex, "regex", "", "topics whose whole name matches this RE2 expression")
	if change {
		f.BoolVar(&s.All, "all", false, "all topics (of the mirror, if one is named)")
	}
}

func whoAmI() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// num is a number, - for one that is not known.
func num[T int16 | int32 | int64](n T) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
