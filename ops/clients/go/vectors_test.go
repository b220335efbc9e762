package delayserver

// The vectors of PROTOCOL.md, as far as a client can check them without a server.

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

type badFrame struct {
	Name     string   `json:"name"`
	HexParts [][2]any `json:"hex_parts"`
	ID       int64    `json:"id"`
	Error    string   `json:"error"`
	Closes   bool     `json:"closes"`
}

func (b *badFrame) bytes(t *testing.T) []byte {
	var frame []byte
	for _, part := range b.HexParts {
		times, _ := part[1].(json.Number).Int64()
		frame = append(frame, bytes.Repeat(unhex(t, part[0].(string)), int(times))...)
	}
	return frame
}

type vectors struct {
	Frames []struct {
		Name, Hex string
		Value     any
	}
	BadFrames []badFrame `json:"bad_frames"`
	Columns   []struct {
		Name, Type, Hex, Error string
		Count                  int
		Rows                   []any
	}
	Ragged []struct {
		Name, Bytes, Lengths, Error string
		Count                       int
		Rows                        []string
	}
	Receipts []struct {
		ServerID  string `json:"server_id"`
		DueMs     int64  `json:"due_ms"`
		Sequence  int64
		Receipt   Receipt
		DerivedID string `json:"derived_message_id"`
	}
	BadReceipts []Receipt `json:"bad_receipts"`
	Clocks      []struct {
		SentUs   int64 `json:"sent_us"`
		ServerUs int64 `json:"server_us"`
		NowUs    int64 `json:"now_us"`
		DelayMs  int64 `json:"delay_ms"`
		DueMs    int64 `json:"due_ms"`
	}
}

func readVectors(t *testing.T) *vectors {
	t.Helper()
	text, err := os.ReadFile("../../../delayserver/protocol/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var all vectors
	if err := decoder.Decode(&all); err != nil {
		t.Fatal(err)
	}
	return &all
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// fromJSON gives a value of the vectors the form in which plain decodes it.
func fromJSON(t *testing.T, value any) any {
	switch value := value.(type) {
	case json.Number:
		if number, err := value.Int64(); err == nil {
			return number
		}
		number, err := value.Float64()
		if err != nil {
			t.Fatal(err)
		}
		return number
	case []any:
		list := make([]any, len(value))
		for index := range value {
			list[index] = fromJSON(t, value[index])
		}
		return list
	case map[string]any:
		if text, ok := value["$bytes"]; ok {
			return unhex(t, text.(string))
		}
		if text, ok := value["$int"]; ok {
			return fromJSON(t, json.Number(text.(string)))
		}
		result := map[string]any{}
		for key := range value {
			result[key] = fromJSON(t, value[key])
		}
		return result
	}
	return value
}

// value decodes a payload without types. Integers are int64.
func value(t *testing.T, payload []byte) any {
	t.Helper()
	decoder := msgpack.NewDecoder(bytes.NewReader(payload))
	result, err := decoder.DecodeInterface()
	if err != nil {
		t.Fatal(err)
	}
	return signed(result)
}

func signed(value any) any {
	switch value := value.(type) {
	case int8, int16, int32, uint8, uint16, uint32, uint64:
		if number := reflect.ValueOf(value); number.CanInt() {
			return number.Int()
		}
		return int64(reflect.ValueOf(value).Uint())
	case []any:
		for index := range value {
			value[index] = signed(value[index])
		}
	case map[string]any:
		for key := range value {
			value[key] = signed(value[key])
		}
	}
	return value
}

func payloadOf(t *testing.T, frame []byte) []byte {
	t.Helper()
	if len(frame) < 4 || int(binary.LittleEndian.Uint32(frame)) != len(frame)-4 {
		t.Fatalf("the length of the frame does not fit: %x", frame)
	}
	return frame[4:]
}

func (v *vectors) frame(t *testing.T, name string) ([]byte, any) {
	t.Helper()
	for _, frame := range v.Frames {
		if frame.Name == name {
			return payloadOf(t, unhex(t, frame.Hex)), fromJSON(t, frame.Value)
		}
	}
	t.Fatalf("there is no vector %q", name)
	return nil, nil
}

func TestEveryFrameIsReadAsItsValue(t *testing.T) {
	for _, frame := range readVectors(t).Frames {
		payload := payloadOf(t, unhex(t, frame.Hex))
		if err := checkValue(payload); err != nil {
			t.Errorf("%s: %v", frame.Name, err)
		}
		if got, want := value(t, payload), fromJSON(t, frame.Value); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", frame.Name, got, want)
		}
		if !strings.HasSuffix(frame.Name, " reply") {
			continue
		}
		answer, err := decodeReply(payload)
		if err != nil {
			t.Errorf("%s: %v", frame.Name, err)
			continue
		}
		whole := fromJSON(t, frame.Value).([]any)
		if answer.id != whole[0] || (answer.err == nil) != whole[1] {
			t.Errorf("%s: the envelope is %+v", frame.Name, answer)
		}
	}
}

func TestErrorsCarryNameMessageAndPause(t *testing.T) {
	all := readVectors(t)
	payload, _ := all.frame(t, "error reply")
	answer, err := decodeReply(payload)
	if err != nil || answer.id != 28 || !reflect.DeepEqual(answer.err, &Error{NotReady, "recovering", 200 * time.Millisecond}) {
		t.Fatal(answer, err)
	}
}

func TestRequestsAreThoseOfTheVectors(t *testing.T) {
	due := time.UnixMilli(1800000000000)
	move := time.UnixMilli(1800000060000)
	receipt := Receipt("5f3a9c0d2b71-01a3185c5000-00000000002a")
	columns := &Batch{
		Subject: "orders", Bodies: [][]byte{[]byte("a"), []byte("bb"), []byte("ccc")},
		Due: []time.Time{due, due.Add(5 * time.Millisecond), due.Add(time.Millisecond)},
	}
	columnsWire, err := columns.wire()
	if err != nil {
		t.Fatal(err)
	}
	delete(columnsWire, "message_ids") // the client always gives ids; the vector has none
	delete(columnsWire, "message_id_length")
	subjects := &Batch{
		Subjects: []string{"orders", "bills"}, Bodies: [][]byte{[]byte("a"), []byte("b")}, Due: []time.Time{due, due},
		IDs: []string{"o-2", ""}, Properties: []map[string]string{nil, {"trace": "7"}}, Expires: make([]time.Time, 2),
	}
	subjectsWire, err := subjects.wire()
	if err != nil {
		t.Fatal(err)
	}
	delete(subjectsWire, "due_ms") // the client makes due times of delays; the vector has the delay
	subjectsWire["delay_ms"] = 1000
	send := (&Message{Subject: "orders", Body: []byte{0, 255}, Due: due, Properties: map[string]string{"trace": "7"}, Expires: move}).wire()
	delete(send, "message_id")
	delivery := []int64{11258999068426240}
	pull := Pull{Subject: "orders", Group: "billing", Max: 1000, Wait: time.Second, Ack: []int64{delivery[0], delivery[0] + 1}}
	nack := settle("orders", "billing", delivery)
	nack["delay_ms"] = ceilMs(5 * time.Second)
	for name, arguments := range map[string]map[string]any{
		"hello request":                    {"versions": []int{1}, "client": "example"},
		"ping request":                     {},
		"send rows request":                {"messages": []any{send, map[string]any{"subject": "", "body": "x", "due_ms": due.UnixMilli()}}},
		"send columns request":             columnsWire,
		"send columns of subjects request": subjectsWire,
		"cancel request":                   {"receipts": []Receipt{receipt}},
		"cancel names request":             {"messages": names([]Name{{"orders", "o-1", due}})},
		"lookup request":                   {"receipts": []Receipt{receipt, "nonsense"}},
		"reschedule request":               {"items": []any{(&Move{Receipt: receipt, Body: []byte("later")}).wire(move.UnixMilli())}},
		"pull columns request":             pull.wire(),
		"ack request":                      settle("orders", "billing", delivery),
		"nack request":                     nack,
		"cancel_wait request":              {"id": 3},
		"groups request":                   {"subject": "orders", "max": 1},
		"route request":                    {"subject": "orders"},
		"status request":                   {},
	} {
		_, want := readVectors(t).frame(t, name)
		whole := want.([]any)
		frame, err := encodeRequest(whole[0].(int64), whole[1].(string), arguments)
		if err != nil {
			t.Fatal(name, err)
		}
		if got := value(t, payloadOf(t, frame)); !reflect.DeepEqual(textBodies(got), textBodies(want)) {
			t.Errorf("%s:\n got %v\nwant %v", name, got, want)
		}
	}
}

// textBodies makes a body of bytes one of text: both are the same to a server.
func textBodies(value any) any {
	switch value := value.(type) {
	case []any:
		for index := range value {
			value[index] = textBodies(value[index])
		}
	case map[string]any:
		for key := range value {
			if data, ok := value[key].([]byte); ok && key == "body" {
				value[key] = string(data)
			} else {
				value[key] = textBodies(value[key])
			}
		}
	}
	return value
}

func TestPulledColumnsBecomeMessages(t *testing.T) {
	payload, _ := readVectors(t).frame(t, "pull columns reply")
	answer, err := decodeReply(payload)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := decodePulled(&Pull{Max: 2}, answer)
	if err != nil {
		t.Fatal(err)
	}
	const server = "5f3a9c0d2b71"
	want := []Received{
		{ID: server + "-00000000002c", Subject: "orders", ServerID: server, Sequence: 44, DueMs: 1800000000005, AcceptedUs: 1799999940000000,
			DispatchedUs: 1800000000005900, Attempt: 1, Body: []byte("bb"), Delivery: 11258999068426242},
		{ID: "o-9", Subject: "orders", ServerID: server, Sequence: 60, DueMs: 1800000000009, AcceptedUs: 1799999940000000,
			DispatchedUs: 1800000000009900, Attempt: 2, Body: []byte("x"), Properties: map[string]string{"trace": "7"}, Delivery: 4622945017495814144},
	}
	if !reflect.DeepEqual(rows, want) {
		t.Errorf("\n got %+v\nwant %+v", rows, want)
	}
	if _, err := decodePulled(&Pull{Max: 1}, answer); err == nil {
		t.Error("a reply with more rows than were asked for is taken")
	}
}

func TestRepliesBecomeStates(t *testing.T) {
	payload, _ := readVectors(t).frame(t, "lookup reply")
	answer, err := decodeReply(payload)
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Results []stateRow `msgpack:"results"`
	}
	if err := decodeResult("lookup", answer, &result); err != nil {
		t.Fatal(err)
	}
	want := State{Receipt: "5f3a9c0d2b71-01a3185c5000-00000000002a", Outcome: Delivered, Subject: "orders", DueMs: 1800000000000,
		DispatchedUs: 1800000000000900, Attempts: 1, BrokerGroup: "default"}
	if got := result.Results[0].state(); got != want {
		t.Errorf("got %+v", got)
	}
	if got := result.Results[1].state(); got.Err == nil || got.Err.Name != ReceiptInvalid {
		t.Errorf("got %+v", got)
	}
}

func TestColumnsAreReadInAllForms(t *testing.T) {
	kinds := map[string]columnType{"i64": i64, "u32": u32, "u8": u8}
	for _, vector := range readVectors(t).Columns {
		var read column
		var rows []int64
		err := msgpack.Unmarshal(unhex(t, vector.Hex), &read)
		if err == nil {
			rows, err = read.rows(vector.Count, kinds[vector.Type])
		}
		if (err != nil) != (vector.Error != "") {
			t.Errorf("%s: %v, want %q", vector.Name, err, vector.Error)
		}
		if err != nil {
			continue
		}
		want := make([]int64, len(vector.Rows))
		for row := range want {
			want[row] = fromJSON(t, vector.Rows[row]).(int64)
		}
		if !reflect.DeepEqual(rows, want) {
			t.Errorf("%s: got %v, want %v", vector.Name, rows, want)
		}
	}
}

func TestColumnsComeBackAsTheyWere(t *testing.T) {
	for _, want := range [][]int64{{}, {7}, {7, 7, 7}, {7, 8, 9}, {7, 9, 8}, {-1, 0}, {math.MinInt64, math.MaxInt64}, {math.MaxInt64, math.MinInt64}} {
		data, err := msgpack.Marshal(encodeColumn(want, i64))
		if err != nil {
			t.Fatal(err)
		}
		var read column
		if err := msgpack.Unmarshal(data, &read); err != nil {
			t.Fatal(want, err)
		}
		if got, err := read.rows(len(want), i64); err != nil || !reflect.DeepEqual(got, want) {
			t.Error(want, got, err)
		}
	}
}

func TestRaggedBytesAreCut(t *testing.T) {
	for _, vector := range readVectors(t).Ragged {
		var lengths column
		if err := msgpack.Unmarshal(unhex(t, vector.Lengths), &lengths); err != nil {
			t.Fatal(vector.Name, err)
		}
		rows, err := cut(unhex(t, vector.Bytes), &lengths, vector.Count)
		if (err != nil) != (vector.Error != "") {
			t.Errorf("%s: %v, want %q", vector.Name, err, vector.Error)
		}
		for row := range rows {
			if hex.EncodeToString(rows[row]) != vector.Rows[row] {
				t.Errorf("%s: row %d is %x", vector.Name, row, rows[row])
			}
		}
	}
}

func TestReceiptsAndDerivedIDs(t *testing.T) {
	all := readVectors(t)
	for _, want := range all.Receipts {
		server, due, sequence, err := want.Receipt.Parts()
		if err != nil || server != want.ServerID || due != want.DueMs || sequence != want.Sequence {
			t.Error(want, server, due, sequence, err)
		}
		if NewReceipt(want.ServerID, want.DueMs, want.Sequence) != want.Receipt || DerivedID(want.ServerID, want.Sequence) != want.DerivedID {
			t.Error(want)
		}
	}
	for _, text := range all.BadReceipts {
		if _, _, _, err := text.Parts(); NameOf(err) != ReceiptInvalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestDelaysBecomeDueTimesOfTheServersClock(t *testing.T) {
	for _, vector := range readVectors(t).Clocks {
		if got := (reading{sentUs: vector.SentUs, serverUs: vector.ServerUs}).dueMs(vector.NowUs, vector.DelayMs); got != vector.DueMs {
			t.Errorf("%+v: %d", vector, got)
		}
	}
}

func TestAReadingAgesAndASleepOfTheMachineShows(t *testing.T) {
	wall := time.UnixMilli(1800000000000)
	look := reading{sentUs: 1000, wall: wall}
	for _, row := range []struct {
		nowUs int64
		wall  time.Duration
		fresh bool
	}{
		{1000 + 59_000_000, 59 * time.Second, true},
		{1000 + 60_000_000, 60 * time.Second, false},
		{1000 + 1_000_000, 10 * time.Second, false},
		{1000 + 1_000_000, -10 * time.Second, false},
	} {
		if got := look.fresh(row.nowUs, wall.Add(row.wall)); got != row.fresh {
			t.Errorf("%+v: %v", row, got)
		}
	}
}

func TestMalformedValuesAreRefused(t *testing.T) {
	for _, vector := range readVectors(t).BadFrames {
		frame := vector.bytes(t)
		bad := vector.Error == MalformedFrame && len(frame) >= 4 && vector.Name != "no array" && vector.Name != "an array of two" &&
			!strings.Contains(vector.Name, "id ") && !strings.HasPrefix(vector.Name, "a key")
		if bad && checkValue(frame[4:]) == nil {
			t.Errorf("%s is taken", vector.Name)
		}
		if vector.Error == MalformedFrame {
			if _, err := decodeReply(frame[4:]); err == nil {
				t.Errorf("%s is taken as a reply", vector.Name)
			}
		}
	}
	for _, text := range []string{"c1", "ddffffffff", "dfffffffff", "c6ffffffff00", "dbffffffff", "d9", "dd00"} {
		if checkValue(unhex(t, text)) == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// errorRow is a row of the table of errors in PROTOCOL.md.
var errorRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [^|]+ \\| .* \\| ([^|]+) \\|$")

func TestErrorsAreRepeatedWherePROTOCOLSaysSo(t *testing.T) {
	page, err := os.ReadFile("../../../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "\n## 10 Errors")
	table, _, ended := strings.Cut(table, "\n## 11 ")
	rows := errorRow.FindAllStringSubmatch(table, -1)
	if !found || !ended || len(rows) < 40 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for _, row := range rows {
		// Only the next pull is well after position_out_of_range: its caller has to know that messages are lost.
		said := strings.HasPrefix(row[2], "yes")
		if got := (&Error{Name: row[1]}).Again(); got != said {
			t.Errorf("%s: repeated is %v, the page says %q", row[1], got, row[2])
		}
	}
}

func TestTheLicenceIsThatOfTheRepository(t *testing.T) {
	ours, err := os.ReadFile("LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := os.ReadFile("../../../LICENSE"); err != nil || !bytes.Equal(ours, whole) {
		t.Error("the copy differs from the licence of the repository", err)
	}
}
