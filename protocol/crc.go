package protocol

import (
	"encoding/binary"
	"hash/crc32"
)

// crcTable is read-only; hash/crc32 recognises it and uses the CPU's own instruction.
var crcTable = crc32.MakeTable(crc32.Castagnoli)

// CRCUpdate returns the CRC-32C of a message in which a stretch of bytes was
// changed, given the message's CRC before, the CRC-32C of the stretch alone
// before and after, and how many bytes lie behind the stretch. What lies before
// and behind is not read: with both CRCs of the stretch started alike,
// before XOR after is the CRC of the difference, and the bytes behind move it,
// as a polynomial over GF(2), by x^(8·behind) mod P. Time: two multiplications
// up to 4 MiB, three up to the longest batch (behind must be below 2^33).
func CRCUpdate(crc, before, after uint32, behind int) uint32 {
	return crc ^ crcShift(before^after, uint64(behind))
}

// crcShift multiplies crc (reflected, as everywhere in CRC-32C) by x^(8n).
func crcShift(crc uint32, n uint64) uint32 {
	if crc == 0 {
		return 0
	}
	for i := 0; n != 0; i, n = i+1, n>>crcDigit {
		if d := n & (1<<crcDigit - 1); d != 0 {
			crc = mulMod(crc, crcPowers[i][d])
		}
	}
	return crc
}

// crcDigit: a length is taken apart into digits of that many bits, each with a
// table of its powers (24 KiB in all).
const crcDigit = 11

// crcPowers[i][d] is x^(8·d·2^(11·i)) mod P: one factor per digit of the length.
var crcPowers = makeCRCPowers()

func makeCRCPowers() (t [3][1 << crcDigit]uint32) {
	step := uint32(1) << (31 - 8) // x^8: bit 31 is x^0
	for i := range t {
		t[i][0] = 1 << 31
		for d := 1; d < len(t[i]); d++ {
			t[i][d] = mulMod(t[i][d-1], step)
		}
		step = mulMod(t[i][len(t[i])-1], step)
	}
	return t
}

// mulMod is a·b mod P over GF(2), reflected; without branches, as the bits are
// as good as random.
func mulMod(a, b uint32) uint32 {
	var p uint32
	for range 32 {
		p ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crc32.Castagnoli&-(b&1)
	}
	return p
}

// CheckCRC computes the batch's CRC-32C (one pass over all its bytes) and
// compares it with the field.
func (b Batch) CheckCRC() bool { return crc32.Checksum(b[offAttributes:], crcTable) == b.CRC() }

func (b Batch) putCRC(c uint32) { binary.BigEndian.PutUint32(b[offCRC:], c) }

// What stamp and restoration change lies in bytes 21–56: attributes and
// producer fields, so one update serves both ranges.
func (b Batch) headCRC() uint32 { return crc32.Update(0, crcTable, b[offAttributes:offNumRecords]) }

// fixCRC updates the field after a change in bytes 21–56; before is headCRC
// from before the change. A wrong CRC stays exactly as wrong as it was.
func (b Batch) fixCRC(before uint32) {
	b.putCRC(CRCUpdate(b.CRC(), before, b.headCRC(), len(b)-offNumRecords))
}
