package protocol

// endpointControllers: type of a DescribeCluster v1+ answer that lists
// controllers instead of brokers (KIP-919).
const endpointControllers int8 = 2

// describeCluster walks a DescribeCluster answer to the brokers. It returns
// false when the answer lists controllers: they have no port at the proxy, and
// whoever asked for them wants to dial them directly.
func (p *patcher) describeCluster(version int16) bool {
	r := &p.r
	r.i32() // throttle
	r.i16() // error
	r.nullableString()
	if version >= 1 && r.i8() == endpointControllers {
		return false
	}
	r.str() // cluster id
	r.i32() // controller id
	n, _ := r.arrayLen(11)
	for range n {
		p.address()
		r.nullableString() // rack
		if version >= 2 {
			r.i8() // fenced
		}
		r.tags()
	}
	return true
}
