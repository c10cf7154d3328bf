package shard

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A value is kept in microseconds to three digits. All histograms have this one
// geometry, so that merging adds counts of the same buckets and loses nothing.
const (
	lowest  = 1
	highest = int64(Longest / time.Microsecond)
	digits  = 3

	// encodedMost is more than any histogram of this geometry takes in practice:
	// 17,000 buckets, each with another count, compress to less.
	encodedMost = 128 << 10
)

// Longest is the longest time that a histogram keeps. What takes longer counts as
// this long.
const Longest = time.Minute

// Histogram counts times to a precision of one in a thousand. Its zero value is
// empty and ready to use, and so is nil for reading. Goroutines that share one
// have to lock it.
type Histogram struct {
	hdr *hdrhistogram.Histogram
}

// Record counts a time. One below zero, the rounding of a difference, counts as
// zero.
func (h *Histogram) Record(d time.Duration) {
	if h.hdr == nil {
		h.hdr = hdrhistogram.New(lowest, highest, digits)
	}
	if err := h.hdr.RecordValue(min(max(d.Microseconds(), 0), highest)); err != nil {
		panic(err) // the value is inside the range
	}
}

// Merge adds what another one counted.
func (h *Histogram) Merge(other *Histogram) {
	if other.Count() == 0 {
		return
	}
	if h.hdr == nil {
		h.hdr = hdrhistogram.New(lowest, highest, digits)
	}
	if dropped := h.hdr.Merge(other.hdr); dropped != 0 {
		panic(fmt.Sprintf("histograms of one geometry: %d values dropped", dropped))
	}
}

// Reset makes it empty, and keeps its memory.
func (h *Histogram) Reset() {
	if h.hdr != nil {
		h.hdr.Reset()
	}
}

// Count is how many times were recorded.
func (h *Histogram) Count() int64 {
	if h == nil || h.hdr == nil {
		return 0
	}
	return h.hdr.TotalCount()
}

// Min is the shortest time, 0 if there is none.
func (h *Histogram) Min() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return microseconds(h.hdr.Min())
}

// Mean is the mean time, 0 if there is none.
func (h *Histogram) Mean() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return time.Duration(h.hdr.Mean() * float64(time.Microsecond))
}

// Max is the longest time, 0 if there is none.
func (h *Histogram) Max() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return microseconds(min(h.hdr.Max(), highest))
}

// Percentile is the time that p percent of the recorded ones do not exceed.
func (h *Histogram) Percentile(p float64) time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return microseconds(min(h.hdr.ValueAtPercentile(p), highest))
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// MarshalText writes HdrHistogram's compressed encoding (V2) in base64, which
// other tools read too.
func (h *Histogram) MarshalText() ([]byte, error) {
	if h.Count() == 0 {
		return hdrhistogram.New(lowest, highest, digits).Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	}
	return h.hdr.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
}

// UnmarshalText reads it, and refuses another geometry before it is given memory.
func (h *Histogram) UnmarshalText(text []byte) error {
	if len(text) > encodedMost {
		return fmt.Errorf("a histogram of %d characters: at most %d", len(text), encodedMost)
	}
	if err := checkGeometry(text); err != nil {
		return err
	}
	hdr, err := hdrhistogram.Decode(text)
	if err != nil {
		return fmt.Errorf("not a histogram: %w", err)
	}
	if hdr.TotalCount() > most {
		return fmt.Errorf("a histogram of %d values: at most %d", hdr.TotalCount(), most)
	}
	h.hdr = hdr
	return nil
}

// checkGeometry looks into the header of a histogram's encoding: 8 bytes, then,
// compressed, three words and the digits, the lowest and the highest value.
func checkGeometry(text []byte) error {
	r := base64.NewDecoder(base64.StdEncoding, bytes.NewReader(text))
	if _, err := io.CopyN(io.Discard, r, 8); err != nil {
		return fmt.Errorf("not a histogram: %w", err)
	}
	z, err := zlib.NewReader(r)
	if err != nil {
		return fmt.Errorf("not a histogram: %w", err)
	}
	var header struct {
		_               [3]int32
		Digits          int32
		Lowest, Highest int64
	}
	if err := binary.Read(z, binary.BigEndian, &header); err != nil {
		return fmt.Errorf("not a histogram: %w", err)
	}
	if header.Lowest != lowest || header.Highest != highest || header.Digits != digits {
		return fmt.Errorf("a histogram from %d to %d at %d digits: want %d to %d microseconds at %d", header.Lowest, header.Highest, header.Digits, lowest, highest, digits)
	}
	return nil
}
