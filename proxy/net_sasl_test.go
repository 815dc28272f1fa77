package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// rawTurn is a token of the client and the broker's, nil: none.
type rawTurn struct{ client, broker []byte }

func gssInitial(kind uint16) []byte {
	b := append([]byte{0x60, 0x82, 0x01, 0x00, 6, 9}, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2)
	return append(binary.BigEndian.AppendUint16(b, kind), make([]byte, 200)...)
}

// rawMechanisms are the tokens of a SaslHandshake v0 as the mechanisms' RFCs and
// brokers have them.
func rawMechanisms() map[string][]rawTurn {
	empty := []byte{}
	v2 := append([]byte{5, 4, 0, 0xff}, make([]byte, 28)...)
	return map[string][]rawTurn{
		"PLAIN":         {{[]byte("\x00user\x00secret"), empty}},
		"PLAIN/authzid": {{[]byte("a\x00A\x00\x01\x02"), empty}},
		"SCRAM-SHA-256": {{[]byte("n,,n=user,r=abc"), []byte("r=abcdef,s=c2FsdA==,i=4096")}, {[]byte("c=biws,r=abcdef,p=cHJvb2Y="), []byte("v=c2ln")}},
		"SCRAM-SHA-512": {{[]byte("n,,n=user,r=abc,tokenauth=true"), []byte("r=abcdef,s=c2FsdA==,i=4096")}, {[]byte("c=biws,r=abcdef,p=cHJvb2Y="), []byte("v=c2ln")}},
		"OAUTHBEARER":   {{[]byte("n,,\x01auth=Bearer e30.e30.\x01\x01"), empty}},
		"AWS_MSK_IAM":   {{[]byte(`{"version":"2020_10_22"}`), []byte(`{"version":"2020_10_22","request-id":"x"}`)}},
		"GSSAPI":        {{gssInitial(0x0100), gssInitial(0x0200)}, {empty, v2}, {v2, nil}},
		"GSSAPI/short":  {{gssInitial(0x0100), v2}, {v2, nil}},   // no mutual authentication
		"GSSAPI/answer": {{gssInitial(0x0100), v2}, {v2, empty}}, // brokers that answer the last token
		"GSSAPI/1964":   {{gssInitial(0x0100), gssInitial(0x0201)}, {gssInitial(0x0201), nil}},
		"GSSAPI/long":   {{gssInitial(0x0100), gssInitial(0x0200)}, {gssInitial(0x0300), gssInitial(0x0200)}, {empty, v2}, {v2, nil}},
	}
}

func sized(b []byte) []byte { return append(protocol.AppendFrameSize(nil, len(b)), b...) }

func saslHandshake(version int16, corr int32, mechanism string) []byte {
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.SetVersion(version)
	req.Mechanism, _, _ = strings.Cut(mechanism, "/")
	return request(protocol.KeySaslHandshake, version, corr, []byte("c"), req.AppendTo(nil))
}

func saslHandshakeAnswer(corr int32, code int16) []byte {
	resp := kmsg.NewPtrSASLHandshakeResponse()
	resp.ErrorCode = code
	resp.SupportedMechanisms = []string{"PLAIN", "GSSAPI"}
	return answerFrame(corr, resp.AppendTo(nil))
}

func metadataAnswer() []byte {
	meta := kmsg.NewPtrMetadataResponse()
	meta.SetVersion(1)
	meta.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 3, Host: "internal.example", Port: 9092}}
	return meta.AppendTo(nil)
}

var metadataBody = []byte{0xff, 0xff, 0xff, 0xff}

// PX-065: SaslHandshake v0 and bare tokens, of every mechanism, byte for byte,
// then requests, whose answers are rewritten as ever; cut anywhere, and with the
// client running ahead.
func TestRawSASL(t *testing.T) {
	for mechanism, turns := range rawMechanisms() {
		for _, cuts := range [][]byte{nil, {0}, {1}, {2}, {4}, {0, 7}, {200}} {
			for _, ahead := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/%v", mechanism, cuts, ahead), func(t *testing.T) {
					s, client, broker := memSession(t, noHandler{})
					handshake := saslHandshake(0, 1, mechanism)
					steps := []rawTurn{{handshake, saslHandshakeAnswer(1, 0)}}
					for _, turn := range turns {
						step := rawTurn{client: sized(turn.client)}
						if turn.broker != nil {
							step.broker = sized(turn.broker)
						}
						steps = append(steps, step)
					}
					steps = append(steps,
						rawTurn{request(protocol.KeyMetadata, 1, 2, []byte("c"), metadataBody), answerFrame(2, metadataAnswer())},
						rawTurn{request(keyHeartbeat, 0, 3, nil, []byte("xy")), answerFrame(3, []byte("z"))},
					)
					var sent []byte
					if ahead {
						for _, step := range steps {
							sent = append(sent, step.client...)
						}
						feed(s, client, sent, cuts)
					}
					got := 0 // of the broker
					for i, step := range steps {
						if !ahead {
							feed(s, client, step.client, cuts)
						}
						require.False(t, s.closed, "closed at step %d", i)
						if i <= len(turns) || !ahead {
							require.Equal(t, string(step.client), string(broker.out[got:min(len(broker.out), got+len(step.client))]), "step %d", i)
						}
						got += len(step.client)
						if i <= len(turns) && step.broker != nil && mechanism != "GSSAPI/answer" {
							require.Len(t, broker.out, got, "the client may not run ahead of step %d", i)
						}
						was := len(client.out)
						feed(s, broker, step.broker, cuts)
						if i == len(turns)+1 {
							require.NotContains(t, string(client.out[was:]), "internal.example")
							require.Contains(t, string(client.out[was:]), "proxy")
							continue
						}
						require.Equal(t, step.broker, append([]byte(nil), client.out[was:]...), "step %d", i)
					}
					require.Len(t, broker.out, got)
					require.Zero(t, s.fifo.len())
					s.close(ReasonClientEOF, nil)
					s.l.runLater()
					require.Zero(t, s.l.held.Load())
				})
			}
		}
	}
}

// A refused handshake is followed by requests; OAUTHBEARER's refusal by one byte.
func TestRawSASLRefused(t *testing.T) {
	s, client, broker := memSession(t, noHandler{})
	feed(s, client, saslHandshake(0, 1, "PLAIN"), nil)
	feed(s, broker, saslHandshakeAnswer(1, 33), nil)
	require.Nil(t, s.sasl)
	feed(s, client, saslHandshake(0, 2, "OAUTHBEARER"), nil)
	feed(s, broker, saslHandshakeAnswer(2, 0), nil)
	feed(s, client, sized([]byte("n,,\x01auth=Bearer x\x01\x01")), nil)
	feed(s, broker, sized([]byte(`{"status":"invalid_token"}`)), nil)
	feed(s, client, sized([]byte{1}), nil)
	require.False(t, s.closed)
	require.Equal(t, []byte{0, 0, 0, 1, 1}, broker.out[len(broker.out)-5:])
	s.onEOF(broker, errors.New("authentication failed"))
	require.Equal(t, 1, closedFor(s.p, ReasonBrokerEOF))
}

// What could make an answer with addresses pass as a token, and what is no token.
func TestRawSASLHostile(t *testing.T) {
	meta := request(protocol.KeyMetadata, 1, 9, nil, metadataBody)
	for name, tc := range map[string]struct {
		mechanism string
		turns     []rawTurn // after the handshake, sized already
		reason    CloseReason
	}{
		"a request in place of the first token":       {"PLAIN", []rawTurn{{meta, answerFrame(9, metadataAnswer())}}, 0},
		"a request in place of the second token":      {"SCRAM-SHA-256", []rawTurn{{sized([]byte("n,,n=u,r=a")), sized([]byte("r=ab"))}, {meta, answerFrame(9, metadataAnswer())}}, 0},
		"a request in place of GSSAPI's":              {"GSSAPI", []rawTurn{{sized(gssInitial(0x100)), sized(nil)}, {meta, answerFrame(9, metadataAnswer())}}, 0},
		"a broker that answers more on success":       {"OAUTHBEARER", []rawTurn{{sized([]byte("n,,\x01")), sized([]byte("welcome"))}, {meta, answerFrame(9, metadataAnswer())}}, 0},
		"a token too many":                            {"PLAIN", []rawTurn{{sized([]byte("\x00u\x00p")), sized(nil)}, {sized([]byte("\x00user\x00pass")), nil}}, ReasonUnknownAPI},
		"a token too many, short":                     {"PLAIN", []rawTurn{{sized([]byte("\x00u\x00p")), sized(nil)}, {sized([]byte{1}), nil}}, ReasonBadFrame},
		"nonsense in GSSAPI":                          {"GSSAPI", []rawTurn{{sized([]byte("abcdefghijkl")), nil}}, ReasonUnknownAPI},
		"a wrapped token, then context":               {"GSSAPI", []rawTurn{{sized([]byte{5, 4, 0, 0}), nil}, {sized(gssInitial(0x100)), nil}}, ReasonUnknownAPI},
		"a huge token":                                {"PLAIN", []rawTurn{{[]byte{0x7f, 0, 0, 0}, nil}}, ReasonFrameTooLarge},
		"a negative size":                             {"PLAIN", []rawTurn{{[]byte{0xff, 0xff, 0xff, 0xff}, nil}}, ReasonBadFrame},
		"the broker's token has a negative size":      {"PLAIN", []rawTurn{{sized([]byte("\x00u\x00p")), []byte{0xff, 0, 0, 0}}}, ReasonProtocolError},
		"the broker wants another token":              {"PLAIN", []rawTurn{{sized([]byte("\x00u\x00p")), sized(nil)}, {meta, sized([]byte("more, please"))}}, ReasonProtocolError},
		"two answers to one token":                    {"PLAIN", []rawTurn{{sized([]byte("\x00u\x00p")), append(sized(nil), sized([]byte("more"))...)}}, ReasonProtocolError},
		"two empty answers to GSSAPI's last":          {"GSSAPI", []rawTurn{{sized([]byte{5, 4, 0, 0}), make([]byte, 8)}}, ReasonProtocolError},
		"an answer to GSSAPI's last that isn't empty": {"GSSAPI", []rawTurn{{sized([]byte{5, 4, 0, 0}), sized([]byte("x"))}}, ReasonProtocolError},
	} {
		for _, cuts := range [][]byte{nil, {0}, {2}} {
			t.Run(fmt.Sprintf("%s/%v", name, cuts), func(t *testing.T) {
				s, client, broker := memSession(t, noHandler{})
				feed(s, client, saslHandshake(0, 1, tc.mechanism), cuts)
				feed(s, broker, saslHandshakeAnswer(1, 0), cuts)
				for i, turn := range tc.turns {
					require.False(t, s.closed, "turn %d", i)
					feed(s, client, turn.client, cuts)
					feed(s, broker, turn.broker, cuts)
				}
				require.NotContains(t, string(client.out), "internal.example")
				if tc.reason == 0 {
					require.False(t, s.closed)
					require.Contains(t, string(client.out), "proxy", "the answer is rewritten")
				} else {
					require.True(t, s.closed)
					require.Equal(t, 1, closedFor(s.p, tc.reason))
				}
				s.close(ReasonClientEOF, nil)
				s.l.runLater()
				require.Zero(t, s.l.held.Load())
			})
		}
	}
}

// Over real sockets, and the end that PX-065 wants: a session of bare tokens
// can't be renewed, the broker cuts it off, and the client hears of it at once.
func TestRawSASLOverSockets(t *testing.T) {
	leakCheck(t)
	for mechanism, turns := range rawMechanisms() {
		p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
			if _, err := readFrame(c); err != nil {
				return
			}
			_, _ = c.Write(saslHandshakeAnswer(1, 0))
			for _, turn := range turns {
				token, err := readFrame(c)
				if err != nil || !bytes.Equal(token, turn.client) {
					t.Errorf("%s: token %q, %v", mechanism, token, err)
					return
				}
				if turn.broker != nil {
					_, _ = c.Write(sized(turn.broker))
				}
			}
			if f, err := readFrame(c); err == nil {
				_, _ = c.Write(answerFrame(int32(binary.BigEndian.Uint32(f[4:])), metadataAnswer()))
			}
		}), nil)
		c := dialRaw(t, p)
		c.send(saslHandshake(0, 1, mechanism))
		corr, _ := c.answer()
		require.EqualValues(t, 1, corr)
		for _, turn := range turns {
			c.send(sized(turn.client))
			if turn.broker != nil {
				token, err := readFrame(c.r)
				require.NoError(t, err)
				require.Equal(t, turn.broker, token)
			}
		}
		c.send(request(protocol.KeyMetadata, 1, 2, nil, metadataBody))
		corr, body := c.answer()
		require.EqualValues(t, 2, corr)
		require.NotContains(t, string(body), "internal.example")
		require.Empty(t, c.ended())
		eventually(t, "reason", func() bool { return closedFor(p, ReasonBrokerEOF) == 1 })
	}
}
