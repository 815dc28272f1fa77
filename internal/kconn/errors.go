package kconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What can be wrong with a connection, for errors.Is; the text that wraps one
// of these says what to do. Name gives the word for metrics.
var (
	ErrRefused     = errors.New("connection refused")
	ErrUnreachable = errors.New("host unreachable")
	ErrTimeout     = errors.New("timed out")
	ErrClosed      = errors.New("connection closed by the broker")
	ErrTLSMismatch = errors.New("one side speaks TLS and the other does not")
	ErrCertificate = errors.New("certificate not accepted")
	ErrCredentials = errors.New("credentials not accepted")
	ErrMechanism   = errors.New("SASL mechanism not offered")
	ErrNonsense    = errors.New("answer is not the Kafka protocol")
	ErrVersion     = errors.New("no version in common")
	// ErrFrameTooLarge: an answer above [Dialer.MaxFrame]; its size is in the text.
	ErrFrameTooLarge = errors.New("answer above limits.max_frame_bytes")
	// ErrNotSent: not a single byte of the request went out, so it can't have
	// had any effect.
	ErrNotSent = errors.New("request not sent")
)

// Name is a short word for err's cause: log field and metric label. It also
// knows the errors of other clients' connections.
func Name(err error) string {
	if n := name(err); n != "other" {
		return n
	}
	return name(classify(err))
}

func name(err error) string {
	for _, c := range []struct {
		err  error
		name string
	}{
		{ErrRefused, "refused"},
		{ErrTLSMismatch, "tls_mismatch"},
		{ErrCertificate, "certificate"},
		{ErrCredentials, "credentials"},
		{ErrMechanism, "sasl_mechanism"},
		{ErrFrameTooLarge, "frame_too_large"},
		{ErrNonsense, "nonsense"},
		{ErrVersion, "version"},
		{ErrTimeout, "timeout"},
		{ErrUnreachable, "unreachable"},
		{ErrClosed, "closed"},
		{context.Canceled, "canceled"},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}

// IsConnection tells errors of the connection from answers: unreachable, closed,
// refused, not let in.
func IsConnection(err error) bool {
	for _, e := range []error{ErrRefused, ErrUnreachable, ErrTimeout, ErrClosed, ErrTLSMismatch, ErrCertificate, ErrCredentials, ErrMechanism} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// classify wraps a network error with the sentinel that names it.
func classify(err error) error {
	var (
		ne   net.Error
		dns  *net.DNSError
		rec  tls.RecordHeaderError
		alrt tls.AlertError
		ua   x509.UnknownAuthorityError
		hn   x509.HostnameError
		ci   x509.CertificateInvalidError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &rec):
		return fmt.Errorf("%w: the broker's port is plaintext, switch tls off or use its TLS port: %w", ErrTLSMismatch, err)
	case errors.As(err, &ua), errors.As(err, &hn), errors.As(err, &ci), errors.As(err, &alrt):
		return fmt.Errorf("%w: check tls.ca_file, tls.server_name and the client certificate: %w", ErrCertificate, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nothing listens there: %w", ErrRefused, err)
	case errors.As(err, &dns), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}

// OfClient puts what a client says of a connection that was closed before its
// first answer in words of ours: its own guess, that TLS or SASL is missing, is
// wrong for a proxy whose brokers are away, and it names no address. Other errors
// are as they were.
func OfClient(cl *kgo.Client, err error) error {
	var first *kgo.ErrFirstReadEOF
	if !errors.As(err, &first) {
		return err
	}
	seeds, _ := cl.OptValue(kgo.SeedBrokers).([]string)
	return fmt.Errorf("%w at once, by %s: its brokers are away if a proxy listens there, or it wants TLS or SASL: %w", ErrClosed, strings.Join(seeds, ", "), io.EOF)
}
