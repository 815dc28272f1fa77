package config

import (
	"net/url"
	"reflect"
	"regexp"
	"strings"
)

// Mechanisms are those that Lockstep's own connections can use.
var mechanisms = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"}

var (
	envName      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	extensionKey = regexp.MustCompile(`^[A-Za-z]+$`)
	extensionVal = regexp.MustCompile(`^[\x20-\x7e\t]+$`)
)

// check checks the settings; it never repeats what may be a secret that was
// written in the wrong place.
func (s SASL) check(key string, bad report) {
	all := strings.Join(mechanisms[:len(mechanisms)-1], ", ") + " or " + mechanisms[len(mechanisms)-1]
	switch {
	case s.Mechanism == "":
		if !reflect.ValueOf(s).IsZero() {
			bad(key+".mechanism", "is missing: write %s", all)
		}
		return
	case !oneOf(s.Mechanism, mechanisms...):
		bad(key+".mechanism", "%q is not supported: write %s", s.Mechanism, all)
		return
	}
	password := s.Mechanism != "OAUTHBEARER" && s.Mechanism != "AWS_MSK_IAM"
	if password {
		if s.Username == "" {
			bad(key+".username", "is missing")
		}
		secret(key, "password", s.PasswordFile, s.PasswordEnv, bad)
	} else if s.Username+s.PasswordFile+s.PasswordEnv != "" {
		bad(key, "username and password are not for %s: remove them", s.Mechanism)
	}
	if s.Mechanism == "OAUTHBEARER" {
		s.OAuth.check(key+".oauth", bad)
	} else if !reflect.ValueOf(s.OAuth).IsZero() {
		bad(key+".oauth", "is only for OAUTHBEARER: remove it, or change mechanism")
	}
	switch {
	case s.Mechanism != "AWS_MSK_IAM" && s.AWS != AWS{}:
		bad(key+".aws", "is only for AWS_MSK_IAM: remove it, or change mechanism")
	case s.AWS.Profile != "" && s.AWS.CredentialsFile == "":
		bad(key+".aws.profile", "needs credentials_file")
	}
}

func (o OAuth) check(key string, bad report) {
	if (o.TokenFile == "") == (o.TokenURL == "") {
		bad(key, "needs one of token_file and token_url")
		return
	}
	for k, v := range o.Extensions {
		switch {
		case !extensionKey.MatchString(k) || strings.EqualFold(k, "auth"):
			bad(key+".extensions", "%q is no name of an extension: letters only, and not auth", k)
		case !extensionVal.MatchString(v):
			bad(key+".extensions", "the value of %s is empty or has control characters", k)
		}
	}
	if o.TokenFile != "" {
		if o.ClientID+o.ClientSecretFile+o.ClientSecretEnv+o.Scope+o.Audience+o.CAFile != "" {
			bad(key, "client_id, client_secret_*, scope, audience and ca_file go with token_url, not with token_file")
		}
		return
	}
	switch u, err := url.Parse(o.TokenURL); {
	case err != nil || u.Host == "" || !oneOf(u.Scheme, "http", "https"):
		bad(key+".token_url", "is no URL of the form https://host/path")
	case u.User != nil:
		bad(key+".token_url", "has credentials in it: use client_id and client_secret_file")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		bad(key+".token_url", "would send the client secret and get the token unencrypted: use https")
	}
	if o.ClientID == "" {
		bad(key+".client_id", "is missing")
	}
	secret(key, "client_secret", o.ClientSecretFile, o.ClientSecretEnv, bad)
}

// secret checks the two places that a secret can come from.
func secret(key, name, file, env string, bad report) {
	if (file == "") == (env == "") {
		bad(key, "needs one of %s_file and %s_env", name, name)
	}
	if env != "" && !envName.MatchString(env) {
		bad(key+"."+name+"_env", "is no name of an environment variable (the secret itself must not stand here)")
	}
}
