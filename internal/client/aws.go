package client

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl/aws"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// awsKeys reads AWS keys from a shared credentials file, or else from the
// environment.
func awsKeys(c config.AWS) (a aws.Auth, err error) {
	if c.CredentialsFile == "" {
		a.AccessKey, a.SecretKey, a.SessionToken = os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN")
		if a.AccessKey == "" || a.SecretKey == "" {
			return aws.Auth{}, fmt.Errorf("AWS_MSK_IAM: the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set: set them, or sasl.aws.credentials_file")
		}
		return a, nil
	}
	text, err := readSecret("sasl.aws.credentials_file", c.CredentialsFile)
	if err != nil {
		return aws.Auth{}, err
	}
	profile, section := cmp.Or(c.Profile, "default"), ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSpace(strings.TrimSuffix(name, "]"))
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || section != profile || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
		case "aws_access_key_id":
			a.AccessKey = value
		case "aws_secret_access_key":
			a.SecretKey = value
		case "aws_session_token":
			a.SessionToken = value
		}
	}
	if a.AccessKey == "" || a.SecretKey == "" {
		return aws.Auth{}, fmt.Errorf("sasl.aws.credentials_file: section [%s] of %s has no aws_access_key_id and aws_secret_access_key", profile, c.CredentialsFile)
	}
	return a, nil
}
