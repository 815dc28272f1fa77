package ledger

type lookup struct{}

func newLive() *Live { return &Live{} }
