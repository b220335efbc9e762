package delayserver

// Frames as bytes: requests are encoded and replies are checked here. Nothing here knows a connection.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// nestingMax is far above what a reply needs. Without a bound a frame of brackets would exhaust the stack.
const nestingMax = 64

var errMalformed = errors.New("the peer sent a malformed frame; is this the port of a delayserver?")

// encodeRequest makes the whole frame of a request.
func encodeRequest(id int64, operation string, arguments map[string]any) ([]byte, error) {
	var buffer bytes.Buffer
	buffer.Write(make([]byte, 4))
	encoder := msgpack.NewEncoder(&buffer)
	encoder.UseCompactInts(true)
	if err := encoder.Encode([]any{id, operation, arguments}); err != nil {
		return nil, fmt.Errorf("%s cannot be encoded: %w", operation, err)
	}
	frame := buffer.Bytes()
	if uint64(len(frame)-4) > 1<<32-1 {
		return nil, &Error{Name: FrameTooLarge, Message: "the request is longer than any frame; send smaller batches"}
	}
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame, nil
}

// reply is the envelope of a reply. The result is decoded by the goroutine that waits for it.
type reply struct {
	id     int64
	result msgpack.RawMessage
	err    *Error
}

// wireError is an error, or an item that failed, as it comes over the wire.
type wireError struct {
	Error        ErrorName `msgpack:"error"`
	Message      string    `msgpack:"message"`
	RetryAfterMs int64     `msgpack:"retry_after_ms"`
	Primary      string    `msgpack:"primary"`
	First        int64     `msgpack:"first"`
	End          int64     `msgpack:"end"`
	Line         int       `msgpack:"line"`
	Column       int       `msgpack:"column"`
	Offset       int       `msgpack:"offset"`
}

func (w *wireError) named() *Error {
	if w.Error == "" {
		return nil
	}
	return &Error{
		Name: w.Error, Message: w.Message, RetryAfter: milliseconds(w.RetryAfterMs), Primary: w.Primary,
		First: w.First, End: w.End, Line: w.Line, Column: w.Column, Offset: w.Offset,
	}
}

func milliseconds(count int64) time.Duration { return time.Duration(count) * time.Millisecond }

// decodeReply reads the payload of a reply frame.
func decodeReply(payload []byte) (*reply, error) {
	if err := checkValue(payload); err != nil {
		return nil, err
	}
	var parts []msgpack.RawMessage
	if err := msgpack.Unmarshal(payload, &parts); err != nil || len(parts) != 3 {
		return nil, errMalformed
	}
	var answer reply
	var success bool
	if msgpack.Unmarshal(parts[0], &answer.id) != nil || msgpack.Unmarshal(parts[1], &success) != nil {
		return nil, errMalformed
	}
	if success {
		answer.result = parts[2]
		return &answer, nil
	}
	var failed wireError
	if err := msgpack.Unmarshal(parts[2], &failed); err != nil || failed.Error == "" {
		return nil, errMalformed
	}
	answer.err = failed.named()
	return &answer, nil
}

// checkValue accepts exactly one msgpack value of the protocol: bounded nesting, lengths that fit, text in UTF-8, no extensions.
// It allocates nothing, so a decoder behind it can trust each length.
func checkValue(payload []byte) error {
	var open [nestingMax]uint64 // values still to come at each level
	level, at := 0, 0
	open[0] = 1
	for {
		for open[level] == 0 {
			if level == 0 {
				if at != len(payload) {
					return errMalformed
				}
				return nil
			}
			level--
		}
		open[level]--
		if at >= len(payload) {
			return errMalformed
		}
		code := payload[at]
		at++
		width, bytesBehind, children, text := shape(code)
		if width < 0 || len(payload)-at < width {
			return errMalformed
		}
		length := uint64(bytesBehind)
		items := uint64(children)
		if width > 0 && (bytesBehind == counted || children == counted) {
			var number uint64
			for _, digit := range payload[at : at+width] {
				number = number<<8 | uint64(digit)
			}
			length, items = 0, 0
			if bytesBehind == counted {
				length = number
			} else {
				items = number
				if code >= 0xde {
					items *= 2
				}
			}
		}
		at += width
		if length > uint64(len(payload)-at) || items > uint64(len(payload)-at) {
			return errMalformed
		}
		if text && !utf8.Valid(payload[at:at+int(length)]) {
			return errMalformed
		}
		at += int(length)
		if items > 0 {
			if level++; level == nestingMax {
				return errMalformed
			}
			open[level] = items
		}
	}
}

const counted = -1 // the number stands in the bytes behind the code

// shape gives, for a first byte, the width of the number behind it, the bytes of the value, its children, and whether it is text.
// A width below 0 is a code that the protocol does not use.
func shape(code byte) (width, bytesBehind, children int, text bool) {
	switch {
	case code <= 0x7f, code >= 0xe0, code == 0xc0, code == 0xc2, code == 0xc3:
		return 0, 0, 0, false
	case code <= 0x8f:
		return 0, 0, 2 * int(code&0x0f), false
	case code <= 0x9f:
		return 0, 0, int(code & 0x0f), false
	case code <= 0xbf:
		return 0, int(code & 0x1f), 0, true
	case code >= 0xc4 && code <= 0xc6:
		return 1 << (code - 0xc4), counted, 0, false
	case code == 0xca, code == 0xcb:
		return 4 << (code - 0xca), 0, 0, false
	case code >= 0xcc && code <= 0xcf:
		return 1 << (code - 0xcc), 0, 0, false
	case code >= 0xd0 && code <= 0xd3:
		return 1 << (code - 0xd0), 0, 0, false
	case code >= 0xd9 && code <= 0xdb:
		return 1 << (code - 0xd9), counted, 0, true
	case code == 0xdc, code == 0xdd:
		return 2 << (code - 0xdc), 0, counted, false
	case code == 0xde, code == 0xdf:
		return 2 << (code - 0xde), 0, counted, false
	}
	return -1, 0, 0, false
}
