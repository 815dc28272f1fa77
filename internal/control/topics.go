package control

import "fmt"

// Topic is a topic that isn't mirrored, and why.
type Topic struct {
	Mirror string `json:"mirror"`
	Topic  string `json:"topic"`
	State  string `json:"state"`            // FAILED, EXCLUDED or UNSELECTED
	Reason string `json:"reason,omitempty"` // of FAILED, in one word
	Text   string `json:"text"`
}

// Topics are the selected topics that aren't mirrored, those that failed first,
// as this instance knows them; left is how many more there are than it lists.
func (s *Service) Topics(sel Selection) (rows []Topic, left int, err error) {
	match, err := sel.matcher(false)
	if err != nil {
		return nil, 0, err
	}
	all, left := s.o.Topics()
	rows = []Topic{}
	for _, t := range all {
		if match(t.Topic) && (sel.Mirror == "" || sel.Mirror == t.Mirror) {
			rows = append(rows, t)
		}
	}
	return rows, left, nil
}

// notMirrored is the answer for a topic that the ledger doesn't know: with the
// reason, if there is one.
func (s *Service) notMirrored(topic, mirror string) *Error {
	rows, _ := s.o.Topics()
	for _, t := range rows {
		if t.Topic == topic && (mirror == "" || mirror == t.Mirror) {
			return &Error{Kind: NotFound, Text: fmt.Sprintf("topic %s is not mirrored%s: it is %s", topic, by(t.Mirror), t.State), Remedy: t.Text}
		}
	}
	return &Error{Kind: NotFound, Text: fmt.Sprintf("topic %s is not mirrored%s", topic, by(mirror)), Remedy: "a topic becomes one when topics.include of a mirror in the configuration matches it; `lockstep describe` shows those that are"}
}
