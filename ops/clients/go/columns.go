package delayserver

// Columns and ragged bytes, in the three forms of the protocol.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

type columnType struct {
	name     string
	width    int
	min, max int64
}

var (
	i64 = columnType{"i64", 8, math.MinInt64, math.MaxInt64}
	u32 = columnType{"u32", 4, 0, math.MaxUint32}
	u8  = columnType{"u8", 1, 0, math.MaxUint8}
)

var errColumn = errors.New("a column is bytes, an integer, or an array of one integer")

type columnForm byte

const (
	missing columnForm = iota
	plain
	same
	counting
)

// column is one number for each row, as it came. Its rows are made when their count and type are known.
type column struct {
	form  columnForm
	data  []byte
	first int64
}

var _ msgpack.CustomDecoder = (*column)(nil)

// DecodeMsgpack reads any of the three forms.
func (c *column) DecodeMsgpack(decoder *msgpack.Decoder) error {
	code, err := decoder.PeekCode()
	if err != nil {
		return err
	}
	switch {
	case msgpcode.IsBin(code):
		c.form = plain
		c.data, err = decoder.DecodeBytes()
		return err
	case msgpcode.IsFixedArray(code), code == msgpcode.Array16, code == msgpcode.Array32:
		length, err := decoder.DecodeArrayLen()
		if err != nil || length != 1 {
			return errColumn
		}
		c.form = counting
	default:
		c.form = same
	}
	c.first, err = decodeInteger(decoder)
	return err
}

// decodeInteger reads an integer exactly: no boolean, no float, nothing above 2^63 - 1.
func decodeInteger(decoder *msgpack.Decoder) (int64, error) {
	code, err := decoder.PeekCode()
	if err != nil {
		return 0, err
	}
	if !msgpcode.IsFixedNum(code) && (code < msgpcode.Uint8 || code > msgpcode.Int64) {
		return 0, errColumn
	}
	if code != msgpcode.Uint64 {
		return decoder.DecodeInt64()
	}
	number, err := decoder.DecodeUint64()
	if number > math.MaxInt64 {
		return 0, errColumn
	}
	return int64(number), err
}

// rows gives the numbers of the column, which the caller knows to be count.
func (c *column) rows(count int, kind columnType) ([]int64, error) {
	if c.form == missing {
		return nil, errColumn
	}
	if c.form == plain {
		return plainRows(c.data, count, kind)
	}
	step := int64(0)
	if c.form == counting {
		step = 1
	}
	last := c.first
	if count > 0 && step == 1 {
		if last > math.MaxInt64-int64(count-1) {
			return nil, fmt.Errorf("a column of %s grows out of its range", kind.name)
		}
		last += int64(count - 1)
	}
	if c.first < kind.min || last > kind.max {
		return nil, fmt.Errorf("a column of %s is out of its range", kind.name)
	}
	result := make([]int64, count)
	for row := range result {
		result[row] = c.first + step*int64(row)
	}
	return result, nil
}

func plainRows(data []byte, count int, kind columnType) ([]int64, error) {
	if len(data)%kind.width != 0 || len(data)/kind.width != count {
		return nil, fmt.Errorf("a column of %d rows of %s has %d bytes", count, kind.name, len(data))
	}
	result := make([]int64, count)
	for row := range result {
		at := data[row*kind.width:]
		switch kind.width {
		case 8:
			result[row] = int64(binary.LittleEndian.Uint64(at))
		case 4:
			result[row] = int64(binary.LittleEndian.Uint32(at))
		default:
			result[row] = int64(at[0])
		}
	}
	return result, nil
}

// encodeColumn takes the shortest form that fits.
func encodeColumn(rows []int64, kind columnType) any {
	allSame, allCounting := len(rows) > 0, len(rows) > 0
	for row, number := range rows {
		allSame = allSame && number == rows[0]
		allCounting = allCounting && number >= rows[0] && number-rows[0] == int64(row)
	}
	if allSame {
		return rows[0]
	}
	if allCounting {
		return []int64{rows[0]}
	}
	data := make([]byte, len(rows)*kind.width)
	for row, number := range rows {
		at := data[row*kind.width:]
		if kind.width == 8 {
			binary.LittleEndian.PutUint64(at, uint64(number))
		} else {
			binary.LittleEndian.PutUint32(at, uint32(number))
		}
	}
	return data
}

// cut gives the rows of ragged bytes. They share the memory of data.
func cut(data []byte, lengths *column, count int) ([][]byte, error) {
	sizes, err := lengths.rows(count, u32)
	if err != nil {
		return nil, err
	}
	result := make([][]byte, count)
	for row, size := range sizes {
		if size > int64(len(data)) {
			return nil, errors.New("the lengths of ragged bytes add up to more than there are")
		}
		result[row], data = data[:size:size], data[size:]
	}
	if len(data) > 0 {
		return nil, errors.New("the lengths of ragged bytes add up to less than there are")
	}
	return result, nil
}

// join makes ragged bytes: all rows end to end, and the column of their lengths.
func join[T ~[]byte | ~string](rows []T) ([]byte, any) {
	total := 0
	for _, row := range rows {
		total += len(row)
	}
	data := make([]byte, 0, total)
	sizes := make([]int64, len(rows))
	for index, row := range rows {
		data = append(data, row...)
		sizes[index] = int64(len(row))
	}
	return data, encodeColumn(sizes, u32)
}

// rejectedRow is `[index, error, message, retry_after_ms or nil]`.
type rejectedRow struct {
	_msgpack     struct{} `msgpack:",as_array"`
	Index        int64
	Error        ErrorName
	Message      string
	RetryAfterMs *int64
}

func (r *rejectedRow) named() *Error {
	named := &Error{Name: r.Error, Message: r.Message}
	if r.RetryAfterMs != nil {
		named.RetryAfter = milliseconds(*r.RetryAfterMs)
	}
	return named
}
